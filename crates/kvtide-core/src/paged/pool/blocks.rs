//! Who holds each block, and which block is taken next.
//!
//! ```text
//!            count    taken next
//! active     > 0      never
//! free       0        first: longest free first                  came back, nothing in it worth keeping
//! untouched  -        then: 0, 1, 2, ...                         never handed out
//! cached     0        last: lowest rank first, then oldest       its content can be found again, and revived
//!
//! active + cached + free + retired = touched       touched + untouched = capacity
//! ```
//!
//! The rank with which a block is cached is joined of three:
//!
//! ```text
//! own rank        what the policy makes of the block's priority, until its limit, and of the default one from then on
//! inherited       the highest of the blocks that were released behind it, with it or while it stayed; a new priority takes it away
//! the chain's     the highest of those released before it in the same call
//! ```
//!
//! [`retain`](crate::paged::PagedPlanner::retain) has the rule, sentence by sentence. All calls are O(1), but for `reserve`, which
//! costs what it adds, those that set, use or end a time limit (O(log limits)), and `check_invariants`. 16 bytes a block, up to the
//! highest handed out.

use super::order::{Block, BlockState, Order};
use super::policy::{EvictionPolicy, LeastRecentlyUsed, PRIORITY_DEFAULT, PRIORITY_MAX, RANK_MAX, ReleasedBlock};
use super::rank::{Rank, RankChain};
use crate::count::count;
use crate::error::{Error, Result};

/// A block that is handed out, or would be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakenBlock {
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
    order: Order,
    policy: Box<dyn EvictionPolicy>,
    /// Whether all blocks have one rank: no policy has been given, and no priority.
    even: bool,
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
            order: Order::new(capacity),
            policy: Box::new(LeastRecentlyUsed),
            even: true,
            now: 0,
            active: 0,
            cached: 0,
            free: 0,
            retired: 0,
            evictions: 0,
        })
    }

    /// The same, evicted in another order.
    pub fn with_policy(mut self, policy: Box<dyn EvictionPolicy>) -> Self {
        self.policy = policy;
        self.even = false;
        self
    }

    /// The same, counting turns anew after so many, so that a test sees it.
    #[doc(hidden)]
    pub fn with_last_turn(mut self, last_turn: u32) -> Self {
        self.order.set_last_turn(last_turn);
        self
    }

    /// Takes the memory that `n` calls of [`Blocks::take`] need.
    pub fn reserve(&mut self, n: u32) -> Result<()> {
        let new = n.saturating_sub(self.free).min(self.capacity - self.touched);
        match (self.touched + new).checked_sub(1) {
            Some(last) if new > 0 => self.order.reserve(last),
            _ => Ok(()),
        }
    }

    /// Hands out a block, held once. Memory for it was reserved.
    pub fn take(&mut self) -> Option<TakenBlock> {
        let taken = if let Some(block) = self.order.pop_free() {
            self.free -= 1;
            TakenBlock { block, evicted: false }
        } else if self.touched < self.capacity {
            self.touched += 1;
            TakenBlock { block: self.touched - 1, evicted: false }
        } else {
            let block = self.order.first_cached()?;
            self.order.unlist(block);
            self.order.limits_mut().remove(block);
            self.cached -= 1;
            self.evictions += 1;
            TakenBlock { block, evicted: true }
        };
        self.order[taken.block] = Block { number: 1, set: BlockState::Active, ..Block::FREE };
        self.active += 1;
        Some(taken)
    }

    /// What the next calls of [`Blocks::take`] would give, in order; changes nothing.
    pub fn upcoming(&self) -> impl Iterator<Item = TakenBlock> {
        let new = self.order.free().chain(self.touched..self.capacity);
        // Most callers never come to the cached ones.
        let cached = std::iter::once_with(|| self.order.cached()).flatten();
        let taken = |evicted| move |block| TakenBlock { block, evicted };
        new.map(taken(false)).chain(cached.map(taken(true)))
    }

    /// Holds a block once more; a cached one is revived. The block is active or cached, and held less than `u32::MAX` times.
    pub fn retain(&mut self, block: u32) {
        match self.order[block].set {
            BlockState::Active => {}
            BlockState::Cached => {
                self.order.unlist(block);
                (self.order[block].set, self.order[block].number) = (BlockState::Active, 0);
                self.cached -= 1;
                self.active += 1;
            }
            set => panic!("block {block} is {set:?} and cannot be held"),
        }
        self.order[block].number += 1;
    }

    /// Lets go of a block; gives how often it is held still. The blocks of a sequence are let go of from its tail to its
    /// head, with one chain, which takes care that no head is evicted before its tail.
    pub fn release(&mut self, block: u32, how: Release, chain: &mut RankChain) -> u32 {
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
        assert_eq!(self.order[block].set, BlockState::Cached, "block {block} has nothing to forget");
        self.order.unlist(block);
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
        self.order.limits_mut().remove(block);
        self.order[block] = Block { set: BlockState::Retired, ..Block::FREE };
        self.active -= 1;
        self.retired += 1;
    }

    fn set_free(&mut self, block: u32) {
        self.order.push_free(block);
        self.free += 1;
    }

    /// Gives a block that is active or cached a priority, 0 to 100, for good or until a time. A cached one changes its place at once and
    /// counts as released now; whoever does that to blocks of one sequence does so from its tail on.
    pub fn set_priority(&mut self, block: u32, priority: u8, until: Option<u64>) -> Result<()> {
        if priority > PRIORITY_MAX {
            return Err(Error::argument("priority", u32::from(priority), "0 to 100"));
        }
        if !matches!(self.set(block), BlockState::Active | BlockState::Cached) {
            return Err(Error::InvalidBlock { block: block.into(), reason: "nothing is kept in it" });
        }
        let limit = until.filter(|until| *until > self.now);
        if limit.is_some() {
            self.order.limits_mut().reserve(1)?;
        }
        let is_cached = self.is_cached(block);
        if is_cached {
            self.order.unlist(block);
        }
        match limit {
            Some(until) => self.order.limits_mut().set_own(block, until),
            None => self.order.limits_mut().remove(block),
        }
        self.even = false;
        let over = until.is_some_and(|until| until <= self.now);
        let held = &mut self.order[block];
        (held.priority, held.inherited) = (if over { PRIORITY_DEFAULT } else { priority }, 0);
        if is_cached {
            let own = self.own_rank(block, None);
            self.order.list(block, own);
        }
        Ok(())
    }

    /// Makes room for limits of so many blocks.
    pub(super) fn reserve_limits(&mut self, blocks: usize) -> Result<()> {
        self.order.limits_mut().reserve(blocks)
    }

    /// The priority of a block, as it stands now.
    pub fn priority(&self, block: u32) -> u8 {
        let over = self.order.limit(block).and_then(|limit| limit.own).is_some_and(|until| until <= self.now);
        if over || block >= self.touched { PRIORITY_DEFAULT } else { self.order[block].priority }
    }

    /// Tells the time, in whatever unit limits are given in: what is over by now goes back to the default priority, and among its
    /// equals where it was released. A time before the last one told is ignored.
    pub fn advance(&mut self, now: u64) {
        self.now = self.now.max(now);
        while let Some(block) = self.order.pop_changed(self.now) {
            self.forget_what_is_over(block);
        }
    }

    /// A block that nobody holds any more waits for its eviction.
    fn cache(&mut self, block: u32, depth: u32, chain: &mut RankChain) {
        self.forget_what_is_over(block);
        let kept = self.keep(block, chain);
        chain.0 = self.own_rank(block, Some(depth)).join(kept);
        self.order[block].set = BlockState::Cached;
        self.active -= 1;
        self.cached += 1;
        self.order.list(block, chain.0);
    }

    /// Whether what a chain has met means anything to the blocks before it that stay. Where all have one rank it does not: each
    /// has that rank of its own, until a priority takes away what it was handed.
    pub(super) fn hands_on(&self, chain: &RankChain) -> bool {
        !self.even && chain.0 != RankChain::default().0
    }

    /// Lets a block that stays keep the rank of those behind it. What it kept before, those before it have as well.
    pub(super) fn hand_on(&mut self, block: u32, chain: &RankChain) {
        self.keep(block, chain);
    }

    /// Lets a block keep the rank of those behind it; gives all that it has kept.
    fn keep(&mut self, block: u32, chain: &RankChain) -> Rank {
        let before = self.inherited(block);
        let kept = before.join(chain.0.at(self.now));
        if kept == before {
            return kept;
        }
        self.order[block].inherited = kept.floor;
        match kept.is_flat() {
            true => self.order.limits_mut().change(block, |limit| limit.inherited = None),
            // Where there is no memory for a limit, it is over at once.
            false => drop(self.order.limits_mut().inherit(block, kept)),
        }
        kept
    }

    fn inherited(&self, block: u32) -> Rank {
        let limited = self.order.limit(block).and_then(|limit| limit.inherited);
        limited.map_or(Rank::flat(self.order[block].inherited), |rank| rank.at(self.now))
    }

    /// What the policy makes of a block's own priority, whose limit lies ahead.
    fn own_rank(&self, block: u32, depth: Option<u32>) -> Rank {
        let ask = |priority| self.policy.rank(&ReleasedBlock { priority, depth }).min(RANK_MAX);
        let top = ask(self.order[block].priority);
        match self.order.limit(block).and_then(|limit| limit.own) {
            Some(until) => Rank { top, floor: ask(PRIORITY_DEFAULT), until },
            None => Rank::flat(top),
        }
    }

    fn forget_what_is_over(&mut self, block: u32) {
        let now = self.now;
        let mut over = false;
        self.order.limits_mut().change(block, |limit| {
            over = limit.own.take_if(|until| *until <= now).is_some();
            limit.inherited.take_if(|rank| rank.until <= now);
        });
        if over {
            self.order[block].priority = PRIORITY_DEFAULT;
        }
    }

    /// Blocks that it was made with: their indices are below this.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Blocks that can be taken.
    pub fn available(&self) -> u32 {
        self.free_count() + self.cached
    }

    /// Blocks that can be taken and have nothing in them.
    pub fn free_count(&self) -> u32 {
        self.free + (self.capacity - self.touched)
    }

    /// Blocks that somebody holds.
    pub fn active_count(&self) -> u32 {
        self.active
    }

    /// Blocks that nobody holds, and whose content can be found.
    pub fn cached_count(&self) -> u32 {
        self.cached
    }

    /// Blocks that are never handed out again.
    pub fn retired_count(&self) -> u32 {
        self.retired
    }

    /// Blocks that were taken while they were cached, ever.
    pub fn evictions(&self) -> u64 {
        self.evictions
    }

    /// How often a block is held; 0 for one that was never handed out.
    pub fn count(&self, block: u32) -> u32 {
        if block < self.touched { self.order[block].count() } else { 0 }
    }

    /// The set that a block is in. One that was never handed out is free.
    pub fn set(&self, block: u32) -> BlockState {
        if block < self.touched { self.order[block].set } else { BlockState::Free }
    }

    /// Whether nobody holds a block whose content can be found.
    pub fn is_cached(&self, block: u32) -> bool {
        self.set(block) == BlockState::Cached
    }

    /// Blocks handed out at least once: their indices are below this.
    pub fn touched(&self) -> u32 {
        self.touched
    }

    /// Bytes that the bookkeeping takes for blocks, without time limits.
    pub fn bytes(&self) -> usize {
        self.order.bytes()
    }

    /// Takes one from a block's count. A block without a count is in between: it is put back, retired or cached next.
    pub(super) fn drop_count(&mut self, block: u32) -> u32 {
        let held = &mut self.order[block];
        assert!(held.count() > 0, "block {block} is held by nobody");
        held.number -= 1;
        held.number
    }

    /// Undoes [`Blocks::drop_count`].
    pub(super) fn undo_drop(&mut self, block: u32) {
        self.order[block].number += 1;
    }

    /// Says what is wrong with the bookkeeping, if anything is: every block is in exactly one set, the order is whole, and the
    /// counters add up. O(blocks ever handed out).
    pub fn check_invariants(&self) -> Result<(), String> {
        let counters = [self.active, self.cached, self.free, self.retired];
        let mut met = [0; 4];
        for block in 0..self.touched {
            let at = self.order[block];
            met[at.set as usize] += 1;
            if at.set != BlockState::Cached && (at.number > 0) != (at.set == BlockState::Active) {
                return Err(format!("block {block} is {:?} and held {} times", at.set, at.number));
            }
        }
        if met != counters || self.touched > self.capacity {
            return Err(format!("{met:?} blocks are active, cached, free, retired; {counters:?} are counted"));
        }
        self.order.check([self.free, self.cached])
    }
}
