//! What is known of each block, the counters, and whether all of it agrees.
//!
//! ```text
//! active + cached + free + retired = touched       touched + untouched = capacity
//! ```
//!
//! O(1), `check_invariants` O(blocks).

use super::{Blocks, FIRST_RANK, FREE, PRIORITY_DEFAULT, RANK_MAX};

/// Which of the sets a block is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Set {
    /// Somebody holds it.
    Active,
    /// Nobody holds it; its content can be found.
    Cached,
    /// Nobody holds it.
    Free,
    /// Never handed out again.
    Retired,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    /// How often it is held; of a cached one, which nobody holds, the turn that it was released in.
    pub number: u32,
    pub set: Set,
    pub priority: u8,
    /// At least this rank, for blocks behind it that were released before.
    pub inherited: u8,
    /// The one that it goes by, while it is cached.
    pub rank: u8,
}

impl Block {
    /// A block that nobody holds and that was given nothing.
    pub(super) const FREE: Block =
        Block { number: 0, set: Set::Free, priority: PRIORITY_DEFAULT, inherited: 0, rank: 0 };

    /// How often it is held.
    fn count(&self) -> u32 {
        if self.set == Set::Active { self.number } else { 0 }
    }
}

impl Blocks {
    /// Blocks that it was made with: their indices are below this.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Blocks that can be taken.
    #[must_use]
    pub fn available(&self) -> u32 {
        self.free_count() + self.cached
    }

    /// Blocks that can be taken and have nothing in them.
    #[must_use]
    pub fn free_count(&self) -> u32 {
        self.free + (self.capacity - self.touched)
    }

    /// Blocks that somebody holds.
    #[must_use]
    pub fn active_count(&self) -> u32 {
        self.active
    }

    /// Blocks that nobody holds, and whose content can be found.
    #[must_use]
    pub fn cached_count(&self) -> u32 {
        self.cached
    }

    /// Blocks that are never handed out again.
    #[must_use]
    pub fn retired_count(&self) -> u32 {
        self.retired
    }

    /// Blocks that were taken while they were cached, ever.
    #[must_use]
    pub fn evictions(&self) -> u64 {
        self.evictions
    }

    /// How often a block is held; 0 for one that was never handed out.
    #[must_use]
    pub fn count(&self, block: u32) -> u32 {
        if block < self.touched { self.blocks[block].count() } else { 0 }
    }

    /// The set that a block is in. One that was never handed out is free.
    #[must_use]
    pub fn set(&self, block: u32) -> Set {
        if block < self.touched { self.blocks[block].set } else { Set::Free }
    }

    /// Whether nobody holds a block whose content can be found.
    #[must_use]
    pub fn is_cached(&self, block: u32) -> bool {
        self.set(block) == Set::Cached
    }

    /// Blocks handed out at least once: their indices are below this.
    #[must_use]
    pub fn touched(&self) -> u32 {
        self.touched
    }

    /// Bytes that the bookkeeping takes for blocks, without time limits.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.blocks.bytes()
    }

    /// Takes one from a block's count. A block without a count is not settled yet: it is put back, retired or cached next.
    pub(in crate::paged) fn drop_count(&mut self, block: u32) -> u32 {
        let held = &mut self.blocks[block];
        assert!(held.count() > 0, "block {block} is held by nobody");
        held.number -= 1;
        held.number
    }

    /// Undoes [`Blocks::drop_count`].
    pub(in crate::paged) fn undo_drop(&mut self, block: u32) {
        self.blocks[block].number += 1;
    }

    /// Says what is wrong with the bookkeeping, if anything is: every block is in exactly one set, the lists are whole, and
    /// the counters add up. O(blocks ever handed out).
    pub fn check_invariants(&self) -> Result<(), String> {
        let counters = [self.active, self.cached, self.free, self.retired];
        let mut met = [0; 4];
        for block in 0..self.touched {
            let at = self.blocks[block];
            met[at.set as usize] += 1;
            if at.set != Set::Cached && (at.number > 0) != (at.set == Set::Active) {
                return Err(format!("block {block} is {:?} and held {} times", at.set, at.number));
            }
        }
        if met != counters || self.touched > self.capacity {
            return Err(format!("{met:?} blocks are active, cached, free, retired; {counters:?} are counted"));
        }
        if self.blocks.check(FREE)? != self.free {
            return Err(format!("{} blocks are free, their list has others", self.free));
        }
        let mut cached = self.limits.queued_count();
        for rank in 0..=RANK_MAX {
            let listed = self.blocks.check(FIRST_RANK + rank)?;
            if (listed > 0) != (self.ranks >> rank & 1 == 1) {
                return Err(format!("rank {rank} has {listed} blocks, its bit says otherwise"));
            }
            cached += listed;
            let fits = |&block: &u32| self.is_cached(block) && self.blocks[block].rank == rank;
            if let Some(block) = self.blocks.iter(FIRST_RANK + rank).find(|block| !fits(block)) {
                return Err(format!("block {block} is in the list of rank {rank}: {:?}", self.blocks[block]));
            }
        }
        if let Some(block) = self.blocks.iter(FREE).find(|&block| self.set(block) != Set::Free) {
            return Err(format!("block {block} is in the list of free ones: {:?}", self.blocks[block]));
        }
        if cached != self.cached {
            return Err(format!("{} blocks are cached, {cached} wait", self.cached));
        }
        self.check_order()?;
        self.check_limits()
    }

    /// Only blocks with content have limits, only cached ones wait for theirs, each in the list of its rank.
    fn check_limits(&self) -> Result<(), String> {
        self.limits.check()?;
        for block in self.limits.blocks() {
            let listed = self.limits.listed(block);
            let fits = match self.set(block) {
                Set::Active => listed.is_none(),
                Set::Cached => listed.is_none_or(|rank| rank.top == self.blocks[block].rank),
                Set::Free | Set::Retired => false,
            };
            if !fits {
                return Err(format!("block {block} has a limit, {listed:?}, and is {:?}", self.blocks[block]));
            }
        }
        Ok(())
    }
}
