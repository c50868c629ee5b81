//! Calls for tiers below the pool: the blocks to offload, and the blocks to restore.
//!
//! ```text
//! note_named, take_named      newly hashed blocks             -> are offloaded, so that other processes find them
//! evicted_next                blocks that are evicted next    -> are offloaded before they are overwritten
//! prompt_in_groups, keep      the cached blocks of a prompt   the others are restored into new blocks
//! ```

use super::paged_planner::PagedPlanner;
use crate::error::Result;
use crate::paged::index::Identity;
use crate::paged::sequence::{Content, HeldContent, KeyChain};
use crate::paged::table::{Reservation, Table};

impl PagedPlanner {
    /// Records from now on which blocks get a key.
    pub fn note_named(&mut self) {
        self.tables.pool_mut().note_named();
    }

    /// Returns the blocks that got a key since the last call, in that order. Some may have lost it since.
    pub fn take_named(&mut self) -> Vec<u32> {
        self.tables.pool_mut().take_named()
    }

    /// True if some blocks got a key since the last call.
    pub fn has_named(&self) -> bool {
        self.tables.pool().has_named()
    }

    /// The cached blocks that will be evicted for the blocks whose memory was reserved last.
    pub fn evicted_next(&self) -> impl Iterator<Item = u32> {
        self.tables.pool().evicted_next()
    }

    /// Reserves memory for this many new blocks. Returns an error if too few are available.
    pub fn reserve_blocks(&mut self, blocks: usize) -> Result<()> {
        self.make_room_for_states(blocks as u64);
        self.state().check_available(blocks as u64)?;
        self.tables.reserve(Reservation { blocks, tables: 1 + blocks / 32, ..Reservation::default() })
    }

    /// Holds these cached blocks, so that they are not evicted.
    pub fn keep(&mut self, blocks: &[u32]) -> Result<HeldContent> {
        let room = Reservation { tables: 1 + blocks.len() / 32, ..Reservation::default() };
        self.tables.reserve(room)?;
        let mut table = Table::default();
        blocks.iter().for_each(|&block| self.tables.add(&mut table, Some(block)));
        self.changed();
        Ok(HeldContent(Content::saved(table, 0, 0, KeyChain::new(Identity::default(), self.forgotten))))
    }

    /// The held blocks, in order.
    pub fn held_blocks(&self, held: &HeldContent) -> impl Iterator<Item = u32> {
        self.tables.iter(held.0.table(), 0).flatten()
    }
}
