//! What plans are made from.

use crate::error::{Error, Result, reserve};
use crate::paged::sequence::Sequences;
use crate::paged::table::Tables;

/// A planner as it is now.
#[derive(Clone, Copy, Debug)]
pub struct PlannerState<'a> {
    /// Its sequences.
    pub sequences: &'a Sequences,
    /// Their tables, and the blocks.
    pub tables: &'a Tables,
    /// How many changes there were.
    pub revision: u64,
}

impl PlannerState<'_> {
    /// Tokens of a block.
    pub fn block_size(&self) -> u32 {
        self.tables.block_size()
    }

    /// Refuses more blocks than can be taken.
    pub fn check_available(&self, needed: u64) -> Result<()> {
        let free = u64::from(self.tables.pool().blocks().available());
        if needed > free { Err(Error::OutOfBlocks { needed, free }) } else { Ok(()) }
    }
}

/// Makes room in what is written down of a call.
pub(super) fn room<T>(list: &mut Vec<T>, more: usize) -> Result<()> {
    reserve(list, more, "sequences and blocks of a call")
}
