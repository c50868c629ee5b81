//! Who holds each block, and which block is taken next.
//!
//! ```text
//!            count    taken next
//! active     > 0      never
//! free       0        first: longest free first                  came back, nothing in it worth keeping
//! untouched  -        then: 0, 1, 2, ...                         never handed out
//! cached     0        last: lowest rank first, then oldest       its content can be found again, and revived
//! ```
//!
//! A pinned block is one with a count of its own: whoever pins it retains it, and releases it to let go.
//!
//! Cached blocks of a rank go in the order of their release. Those whose rank never changes come into the list of their rank in
//! that order. The others lie in the queue of `limits.rs`, by rank and *turn*: such a release begins a turn, and blocks in lists
//! have the turn that they were released in, so that both orders are one.
//!
//! Invariants: every block below `touched` is active, cached, free or retired, and in the list of that set and no other;
//! every block above was never handed out. A cached block lies in the list of its rank or in the queue, and `ranks` has a bit for
//! each list that is not empty. All calls are O(1), but for `reserve`, which costs what it adds, those that set, use or end a time
//! limit (O(log limits)), and `check_invariants`. 16 bytes a block, up to the highest handed out.
//!
//! Handed-out counts are kept in `sets.rs`, with what checks them.

mod limits;
mod lists;
mod policy;
mod priority;
mod queue;
mod rank;
mod rank_table;
mod sets;
mod turns;

pub use policy::{EvictionPolicy, LeastRecentlyUsed, PRIORITY_DEFAULT, PRIORITY_MAX, RANK_MAX, Released};
pub use rank::Chain;
pub use rank_table::RankTable;
pub use sets::Set;

use limits::Limits;
use lists::Lists;
use sets::Block;

use crate::count::count;
use crate::error::Result;

/// The list of free blocks; those behind it are of ranks.
const FREE: u8 = 0;
const FIRST_RANK: u8 = 1;

/// A block that is handed out, or would be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Its index.
    pub block: u32,
    /// Whether it was cached until now: what was in it cannot be found any more.
    pub evicted: bool,
}

/// How a block is let go of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Release {
    /// Whether its content is kept, to be found again.
    pub cached: bool,
    /// Its place in the sequence.
    pub depth: u32,
}

/// The blocks of a pool by their indices: counts, and the order of eviction.
#[derive(Debug)]
pub struct Blocks {
    capacity: u32,
    /// Blocks handed out at least once.
    touched: u32,
    blocks: Lists<Block>,
    /// A bit for each rank that has blocks.
    ranks: u128,
    policy: Box<dyn EvictionPolicy>,
    /// Whether all blocks have one rank: no policy has been given, and no priority.
    even: bool,
    limits: Limits,
    /// The turn that is on, and the last one there may be before they are counted anew.
    turn: u32,
    last_turn: u32,
    now: u64,
    active: u32,
    cached: u32,
    free: u32,
    retired: u32,
    evictions: u64,
}

impl Blocks {
    /// `capacity` blocks, all free; evicted least recently used first, if it comes to that.
    pub fn new(capacity: u32) -> Result<Self> {
        let capacity = count("capacity", capacity.into())?;
        Ok(Blocks {
            capacity,
            touched: 0,
            blocks: Lists::new(FIRST_RANK + RANK_MAX + 1, capacity, Block::FREE),
            ranks: 0,
            policy: Box::new(LeastRecentlyUsed),
            even: true,
            limits: Limits::default(),
            turn: 0,
            last_turn: u32::MAX,
            now: 0,
            active: 0,
            cached: 0,
            free: 0,
            retired: 0,
            evictions: 0,
        })
    }

    /// The same, evicted in another order.
    #[must_use]
    pub fn with_policy(mut self, policy: Box<dyn EvictionPolicy>) -> Self {
        self.policy = policy;
        self.even = false;
        self
    }

    /// Takes the memory that `n` calls of [`Blocks::take`] need.
    pub fn reserve(&mut self, n: u32) -> Result<()> {
        let new = n.saturating_sub(self.free).min(self.capacity - self.touched);
        match (self.touched + new).checked_sub(1) {
            Some(last) if new > 0 => self.blocks.reserve(last),
            _ => Ok(()),
        }
    }

    /// Hands out a block, held once. Memory for it was reserved.
    pub fn take(&mut self) -> Option<Taken> {
        let taken = if let Some(block) = self.blocks.first(FREE) {
            self.blocks.remove(block);
            self.free -= 1;
            Taken { block, evicted: false }
        } else if self.touched < self.capacity {
            self.touched += 1;
            Taken { block: self.touched - 1, evicted: false }
        } else {
            let block = self.first_in_order()?;
            self.unlist(block);
            self.limits.remove(block);
            self.cached -= 1;
            self.evictions += 1;
            Taken { block, evicted: true }
        };
        self.blocks[taken.block] = Block { number: 1, set: Set::Active, ..Block::FREE };
        self.active += 1;
        Some(taken)
    }

    /// What the next calls of [`Blocks::take`] would give, in order; changes nothing.
    pub fn upcoming(&self) -> impl Iterator<Item = Taken> {
        let new = self.blocks.iter(FREE).chain(self.touched..self.capacity);
        let cached = self.in_order().map(|block| Taken { block, evicted: true });
        new.map(|block| Taken { block, evicted: false }).chain(cached)
    }

    /// Holds a block once more; a cached one is revived. The block is active or cached, and held less than `u32::MAX` times.
    pub fn retain(&mut self, block: u32) {
        match self.blocks[block].set {
            Set::Active => {}
            Set::Cached => {
                self.unlist(block);
                (self.blocks[block].set, self.blocks[block].number) = (Set::Active, 0);
                self.cached -= 1;
                self.active += 1;
            }
            set => panic!("block {block} is {set:?} and cannot be held"),
        }
        self.blocks[block].number += 1;
    }

    /// Lets go of a block; gives how often it is held still. The blocks of a sequence are let go of from its tail to its
    /// head, with one chain, which takes care that no head is evicted before its tail.
    pub fn release(&mut self, block: u32, how: Release, chain: &mut Chain) -> u32 {
        let left = self.drop_count(block);
        if left > 0 {
            self.hand_on(block, chain);
        } else if how.cached {
            self.cache(block, how.depth, chain);
        } else {
            self.put_back(block);
        }
        left
    }

    /// A cached block's content is given up: it is free.
    pub fn forget(&mut self, block: u32) {
        assert_eq!(self.blocks[block].set, Set::Cached, "block {block} has nothing to forget");
        self.unlist(block);
        self.cached -= 1;
        self.set_free(block);
    }

    /// A block that was let go of for the last time: free, and with nothing in it.
    pub(super) fn put_back(&mut self, block: u32) {
        self.active -= 1;
        self.set_free(block);
    }

    /// A block that was let go of for the last time, and is never handed out again.
    pub(super) fn retire(&mut self, block: u32) {
        self.limits.remove(block);
        self.blocks[block] = Block { set: Set::Retired, ..Block::FREE };
        self.active -= 1;
        self.retired += 1;
    }

    fn set_free(&mut self, block: u32) {
        self.limits.remove(block);
        self.blocks[block] = Block::FREE;
        self.blocks.push_back(FREE, block);
        self.free += 1;
    }
}
