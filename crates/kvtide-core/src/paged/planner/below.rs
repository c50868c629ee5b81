//! What goes from here to somewhere below, and comes back from there.
//!
//! ```text
//! note_named, take_named      blocks that got a name          -> copied, so that they are found elsewhere too
//! evicted_next                blocks that are about to go     -> copied before something else is written to them
//! prompt_in_groups, keep      what of a prompt is here        the rest comes back into new blocks
//! ```

use super::paged_planner::PagedPlanner;
use crate::error::Result;
use crate::paged::index::Identity;
use crate::paged::sequence::{Content, HeldContent, KeyChain};
use crate::paged::table::{Reservation, Table};

impl PagedPlanner {
    /// Notes from now on which blocks get a name.
    pub fn note_named(&mut self) {
        self.tables.pool_mut().note_named();
    }

    /// The blocks that got a name since the last call, in that order; some may have lost it since.
    pub fn take_named(&mut self) -> Vec<u32> {
        self.tables.pool_mut().take_named()
    }

    /// Whether some got a name since the last call.
    pub fn has_named(&self) -> bool {
        self.tables.pool().has_named()
    }

    /// The blocks that prompts find and that the blocks which memory was last reserved for will take the place of.
    pub fn evicted_next(&self) -> impl Iterator<Item = u32> {
        self.tables.pool().evicted_next()
    }

    /// Reserves the memory for so many new blocks, which are refused where there are too few.
    pub fn reserve_blocks(&mut self, blocks: usize) -> Result<()> {
        self.state().check_available(blocks as u64)?;
        self.tables.reserve(Reservation { blocks, tables: 1 + blocks / 32, ..Reservation::default() })
    }

    /// Holds blocks that are found, so that they stay.
    pub fn keep(&mut self, blocks: &[u32]) -> Result<HeldContent> {
        let room = Reservation { tables: 1 + blocks.len() / 32, ..Reservation::default() };
        self.tables.reserve(room)?;
        let mut table = Table::default();
        blocks.iter().for_each(|&block| self.tables.add(&mut table, Some(block)));
        self.changed();
        Ok(HeldContent(Content::saved(table, 0, 0, KeyChain::new(Identity::default(), self.forgotten))))
    }

    /// The blocks that are held, in order.
    pub fn held_blocks(&self, held: &HeldContent) -> impl Iterator<Item = u32> {
        self.tables.iter(held.0.table(), 0).flatten()
    }
}
