//! Statistics about the blocks of all groups: their number, their states, and the sequences that use them.

use kvtide_core::paged::PoolStats;

use super::cache::PagedKvCache;
use crate::base::error::{Error, Result};
use crate::paged::PageGroup;

impl PagedKvCache {
    /// The fraction of all pools that is in use, 0 to 1.
    #[must_use]
    pub fn pool_utilization(&mut self) -> f64 {
        let (free, total) = (self.free_count(), self.total_count());
        if total == 0 { 0. } else { f64::from(total - free) / f64::from(total) }
    }

    /// The number of free blocks of all groups.
    #[must_use]
    pub fn free_count(&mut self) -> u32 {
        self.groups.iter_mut().map(|group| group.current().free_count()).fold(0, u32::saturating_add)
    }

    /// The number of all blocks.
    #[must_use]
    pub fn total_count(&self) -> u32 {
        self.groups.iter().map(|group| group.planner().total_count()).fold(0, u32::saturating_add)
    }

    /// The content and the counters of each group's pool.
    pub fn pools(&mut self) -> Result<Vec<PoolStats>> {
        self.collect()?;
        Ok(self.groups.iter().map(|group| group.planner().pool_stats()).collect())
    }

    /// The state of each block of a group, as in
    /// [`PagedPlanner::block_states`](kvtide_core::paged::PagedPlanner::block_states); O(blocks).
    pub fn block_states(&mut self, group: usize) -> Result<Vec<u8>> {
        self.collect()?;
        Ok(self.numbered(group)?.planner().block_states()?)
    }

    /// The block table of a sequence in a group, as in
    /// [`PagedPlanner::blocks_of`](kvtide_core::paged::PagedPlanner::blocks_of).
    pub fn blocks_of(&mut self, sequence: u64, group: usize) -> Result<Vec<i32>> {
        self.collect()?;
        Ok(self.numbered(group)?.planner().blocks_of(sequence)?)
    }

    /// For each slot of a group of states, the number of tokens before its state, as in
    /// [`PagedPlanner::state_ends`](kvtide_core::paged::PagedPlanner::state_ends); zeros for other groups.
    pub fn state_ends(&mut self, group: usize) -> Result<Vec<u32>> {
        self.collect()?;
        Ok(self.numbered(group)?.planner().state_ends()?)
    }

    /// The lengths of a sequence at which there is a checkpoint of its states, ascending; none without states.
    pub fn checkpoints_of(&mut self, sequence: u64) -> Result<Vec<u32>> {
        self.collect()?;
        match self.groups.iter().find(|group| group.keeps_states()) {
            Some(group) => Ok(group.planner().checkpoints_of(sequence)?),
            None => Ok(Vec::new()),
        }
    }

    fn numbered(&self, group: usize) -> Result<&PageGroup> {
        let expected = || format!("below {}, the number of groups", self.groups.len());
        self.groups.get(group).ok_or_else(|| Error::argument("group", group as u64, expected()))
    }

    /// The number of staging pages: low-bit pages that are not full and still floats.
    #[must_use]
    pub fn staged_count(&mut self) -> u32 {
        self.groups.iter_mut().map(|group| group.current().staged_count()).fold(0, u32::saturating_add)
    }
}
