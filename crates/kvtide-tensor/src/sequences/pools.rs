//! The blocks of all groups: how many there are, what each is, whose they are.

use kvtide_core::paged::PoolStats;

use super::cache::PagedKvCache;
use crate::base::error::{Error, Result};
use crate::paged::PageGroup;

impl PagedKvCache {
    /// The used share of all pools, 0 to 1.
    #[must_use]
    pub fn pool_utilization(&mut self) -> f64 {
        let (free, total) = (self.free_count(), self.total_count());
        if total == 0 { 0. } else { f64::from(total - free) / f64::from(total) }
    }

    /// Blocks that are free, of all groups.
    #[must_use]
    pub fn free_count(&mut self) -> u32 {
        self.groups.iter_mut().map(|group| group.current().free_count()).fold(0, u32::saturating_add)
    }

    /// Blocks in all.
    #[must_use]
    pub fn total_count(&self) -> u32 {
        self.groups.iter().map(|group| group.planner().total_count()).fold(0, u32::saturating_add)
    }

    /// What the pool of each group holds, and what it has done.
    pub fn pools(&mut self) -> Result<Vec<PoolStats>> {
        self.collect()?;
        Ok(self.groups.iter().map(|group| group.planner().pool_stats()).collect())
    }

    /// What each block of a group is, as [`PagedPlanner::block_states`](kvtide_core::paged::PagedPlanner::block_states) says; O(blocks).
    pub fn block_states(&mut self, group: usize) -> Result<Vec<u8>> {
        self.collect()?;
        Ok(self.numbered(group)?.planner().block_states()?)
    }

    /// The blocks that a sequence has in a group, in order, as [`PagedPlanner::blocks_of`](kvtide_core::paged::PagedPlanner::blocks_of) says.
    pub fn blocks_of(&mut self, sequence: u64, group: usize) -> Result<Vec<i32>> {
        self.collect()?;
        Ok(self.numbered(group)?.planner().blocks_of(sequence)?)
    }

    fn numbered(&self, group: usize) -> Result<&PageGroup> {
        let expected = || format!("below {}, the number of groups", self.groups.len());
        self.groups.get(group).ok_or_else(|| Error::argument("group", group as u64, expected()))
    }

    /// Low-bit pages that lie in floats because they are not full.
    #[must_use]
    pub fn staged_count(&mut self) -> u32 {
        self.groups.iter_mut().map(|group| group.current().staged_count()).fold(0, u32::saturating_add)
    }
}
