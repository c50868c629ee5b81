//! Memory of the bookkeeping, taken before a call changes anything.
//!
//! ```text
//! room of the copies + room of what follows them      taken at once, or not at all
//! ```
//!
//! A plan says how much it takes at most, so that what was planned is carried out to its end, or not begun.

use std::ops::Add;

/// How much a call takes at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reservation {
    /// Blocks that it hands out.
    pub blocks: usize,
    /// Blocks whose marks it changes.
    pub marks: usize,
    /// Changes of tables.
    pub tables: usize,
    /// Staging pages that it takes.
    pub staged: usize,
}

impl Add for Reservation {
    type Output = Reservation;

    fn add(self, other: Reservation) -> Reservation {
        Reservation {
            blocks: self.blocks + other.blocks,
            marks: self.marks + other.marks,
            tables: self.tables + other.tables,
            staged: self.staged + other.staged,
        }
    }
}
