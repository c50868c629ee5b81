//! Memory of the bookkeeping, taken before a call changes anything.
//!
//! ```text
//! room of the copies + room of what follows them      taken at once, or not at all
//! ```
//!
//! A plan says how much it takes at most, so that what was planned is carried out to its end, or not begun. O(blocks).

use std::ops::Add;

use super::sequences::PagedPlanner;
use crate::error::Result;

/// How much a call takes at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Room {
    /// Blocks that it hands out.
    pub blocks: usize,
    /// Blocks whose marks it changes.
    pub marks: usize,
    /// Changes of tables.
    pub tables: usize,
    /// Staging pages that it takes.
    pub staged: usize,
}

impl Add for Room {
    type Output = Room;

    fn add(self, other: Room) -> Room {
        Room {
            blocks: self.blocks + other.blocks,
            marks: self.marks + other.marks,
            tables: self.tables + other.tables,
            staged: self.staged + other.staged,
        }
    }
}

impl PagedPlanner {
    /// Takes the memory for so much.
    pub(super) fn take_room(&mut self, room: Room) -> Result<()> {
        self.store.reserve(room.blocks, room.marks)?;
        self.chunks.reserve(room.tables, room.blocks)?;
        self.store.staging.reserve(room.staged)
    }

    /// Staging pages that there must be for so much.
    pub(super) fn staging_pages_of(&self, room: Room) -> u32 {
        self.store.staging.upcoming().take(room.staged).max().map_or(0, |last| last + 1)
    }
}
