//! The reference count of each block, and the order in which blocks are taken.
//!
//! ```text
//!            count    taken next
//! active     > 0      never
//! free       0        first: longest free first                  released, without content worth keeping
//! untouched  -        then: 0, 1, 2, ...                         never handed out
//! cached     0        last: lowest rank first, then oldest, or   prompts can still find its content and revive it
//!                     least useful (`usefulness.rs`)
//!
//! active + cached + free + retired = touched       touched + untouched = capacity
//! ```
//!
//! A block is cached with a rank that combines three:
//!
//! ```text
//! own rank        computed by the policy from the block's priority until its limit, and from the default priority from then on
//! inherited       the highest rank of blocks released behind it, with it or while it stayed; a new priority clears it
//! the chain's     the highest rank of blocks released before it in the same call
//! ```
//!
//! [`retain`](crate::paged::PagedPlanner::retain) has the complete rule. All calls are O(1), except `reserve`, which
//! costs what it adds, calls that set, use or end a time limit (O(log limits)), and `check_invariants`; if the least
//! useful block is evicted first, calls that cache, revive or take one are O(log cached). 16 bytes per block, up to the
//! highest block handed out.

use super::order::{Block, BlockState, Order};
use super::policy::{EvictionPolicy, LeastRecentlyUsed, PRIORITY_DEFAULT, PRIORITY_MAX, RANK_MAX, ReleasedBlock};
use super::rank::{Rank, RankChain};
use super::usefulness::Usefulness;
use crate::count::count;
use crate::error::{Error, Result};

/// A block that is handed out next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakenBlock {
    /// The block's index.
    pub block: u32,
    /// True if it was cached until now: prompts cannot find its content any more.
    pub evicted: bool,
}

/// Properties of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Release {
    /// True if the content is kept for later prompts.
    pub cached: bool,
    /// The block's place in the sequence.
    pub depth: u32,
}

/// The blocks of a pool by index: reference counts, and the order of eviction.
#[derive(Debug)]
pub struct Blocks {
    capacity: u32,
    /// Number of blocks handed out at least once.
    touched: u32,
    order: Order,
    policy: Box<dyn EvictionPolicy>,
    /// The usefulness of each block, if the policy orders blocks by it.
    useful: Option<Usefulness>,
    /// True if all blocks have the same rank: no policy and no priority was set.
    even: bool,
    now: u64,
    active: u32,
    cached: u32,
    free: u32,
    retired: u32,
    evictions: u64,
}

impl Blocks {
    /// Returns `capacity` free blocks, which are evicted least recently used first.
    pub fn new(capacity: u32) -> Result<Self> {
        let capacity = count("capacity", capacity.into())?;
        Ok(Blocks {
            capacity,
            touched: 0,
            order: Order::new(capacity),
            policy: Box::new(LeastRecentlyUsed),
            useful: None,
            even: true,
            now: 0,
            active: 0,
            cached: 0,
            free: 0,
            retired: 0,
            evictions: 0,
        })
    }

    /// Sets another eviction policy. No block may be in use yet.
    pub fn with_policy(mut self, policy: Box<dyn EvictionPolicy>) -> Self {
        self.useful = policy.orders_by_usefulness().then(|| Usefulness::new(self.capacity));
        self.order.set_by_score(self.useful.is_some());
        self.policy = policy;
        self.even = false;
        self
    }

    /// Renumbers turns after this many, so that a test can observe it.
    #[doc(hidden)]
    pub fn with_last_turn(mut self, last_turn: u32) -> Self {
        self.order.set_last_turn(last_turn);
        self
    }

    /// Reserves the memory that `n` calls of [`Blocks::take`] need.
    pub fn reserve(&mut self, n: u32) -> Result<()> {
        let new = n.saturating_sub(self.free).min(self.capacity - self.touched);
        match (self.touched + new).checked_sub(1) {
            Some(last) if new > 0 => {
                self.useful.as_mut().map_or(Ok(()), |useful| useful.reserve(last))?;
                self.order.reserve(last)
            }
            _ => Ok(()),
        }
    }

    /// Hands out a block with a reference count of 1. Its memory must be reserved.
    pub fn take(&mut self) -> Option<TakenBlock> {
        let taken = if let Some(block) = self.order.pop_free() {
            self.free -= 1;
            TakenBlock { block, evicted: false }
        } else if self.touched < self.capacity {
            self.touched += 1;
            TakenBlock { block: self.touched - 1, evicted: false }
        } else {
            let block = self.order.first_cached()?;
            if let Some(useful) = &mut self.useful {
                useful.evicted(self.order.score(block));
            }
            self.order.unlist(block);
            self.order.limits_mut().remove(block);
            self.cached -= 1;
            self.evictions += 1;
            TakenBlock { block, evicted: true }
        };
        self.order[taken.block] = Block { number: 1, set: BlockState::Active, ..Block::FREE };
        if let Some(useful) = &mut self.useful {
            useful.begin(taken.block);
        }
        self.active += 1;
        Some(taken)
    }

    /// The results of the next calls of [`Blocks::take`], in order. Changes nothing.
    pub fn upcoming(&self) -> impl Iterator<Item = TakenBlock> {
        let new = self.order.free().chain(self.touched..self.capacity);
        // Most callers never reach the cached ones.
        let cached = std::iter::once_with(|| self.order.cached()).flatten();
        let taken = |evicted| move |block| TakenBlock { block, evicted };
        new.map(taken(false)).chain(cached.map(taken(true)))
    }

    /// Increments a block's reference count; a cached block is revived. The block must be active or cached, with a
    /// count below `u32::MAX`.
    pub fn retain(&mut self, block: u32) {
        match self.order[block].set {
            BlockState::Active => {}
            BlockState::Cached => {
                self.order.unlist(block);
                (self.order[block].set, self.order[block].number) = (BlockState::Active, 0);
                if let Some(useful) = &mut self.useful {
                    useful.request(block);
                }
                self.cached -= 1;
                self.active += 1;
            }
            set => panic!("block {block} is {set:?} and cannot be held"),
        }
        self.order[block].number += 1;
    }

    /// Decrements a block's reference count and returns it. The blocks of a sequence must be released from its tail to
    /// its head, with one chain, which makes sure that no head is evicted before its tail.
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

    /// Drops the content of a cached block, which becomes free.
    pub fn forget(&mut self, block: u32) {
        assert_eq!(self.order[block].set, BlockState::Cached, "block {block} has nothing to forget");
        self.order.unlist(block);
        self.cached -= 1;
        self.set_free(block);
    }

    /// Notes that a prompt which finds a block saves this many tokens, compared with the next block before it that it
    /// could find, and that this many prompts had the block's tokens until now. Matters from the block's next release
    /// on, and only if the policy orders blocks by usefulness.
    pub fn note_use(&mut self, block: u32, tokens: u32, requests: u32) {
        if let Some(useful) = &mut self.useful {
            useful.note(block, tokens, requests);
        }
    }

    /// Frees a block whose reference count has become zero, without keeping its content.
    pub(super) fn put_back(&mut self, block: u32) {
        self.active -= 1;
        self.set_free(block);
    }

    /// Retires a block whose reference count has become zero: it is never handed out again.
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

    /// Sets the priority of an active or cached block, 0 to 100, until a time or without a limit. A cached block
    /// changes its place at once and counts as released now, so callers that change several blocks of one sequence
    /// start at its tail.
    pub fn set_priority(&mut self, block: u32, priority: u8, until: Option<u64>) -> Result<()> {
        if priority > PRIORITY_MAX {
            return Err(Error::argument("priority", u32::from(priority), "0 to 100"));
        }
        if !matches!(self.set(block), BlockState::Active | BlockState::Cached) {
            return Err(Error::InvalidBlock { block: block.into(), reason: "it is neither held nor cached" });
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
            let (own, score) = (self.own_rank(block, None), self.score(block));
            self.order.list(block, own, score);
        }
        Ok(())
    }

    /// Reserves memory for the limits of this many blocks.
    pub(super) fn reserve_limits(&mut self, blocks: usize) -> Result<()> {
        self.order.limits_mut().reserve(blocks)
    }

    /// The present priority of a block.
    pub fn priority(&self, block: u32) -> u8 {
        let over = self.order.limit(block).and_then(|limit| limit.own).is_some_and(|until| until <= self.now);
        if over || block >= self.touched { PRIORITY_DEFAULT } else { self.order[block].priority }
    }

    /// Sets the time, in the unit of the limits. Priorities whose limit has passed return to the default, and the block
    /// to its place among equals, in the order of release. A time before the last one is ignored.
    pub fn advance(&mut self, now: u64) {
        self.now = self.now.max(now);
        while let Some(block) = self.order.pop_changed(self.now) {
            self.forget_what_is_over(block);
        }
    }

    /// Caches a block whose reference count has become zero.
    fn cache(&mut self, block: u32, depth: u32, chain: &mut RankChain) {
        self.forget_what_is_over(block);
        let kept = self.keep(block, chain);
        chain.0 = self.own_rank(block, Some(depth)).join(kept);
        self.order[block].set = BlockState::Cached;
        self.active -= 1;
        self.cached += 1;
        self.order.list(block, chain.0, self.score(block));
    }

    /// The score of a block that is released now; 0 if blocks are not ordered by usefulness.
    fn score(&self, block: u32) -> u64 {
        self.useful.as_ref().map_or(0, |useful| useful.score(block))
    }

    /// True if a chain's rank matters to the blocks before it that stay. It does not if all blocks have the same rank:
    /// each block has that rank itself, until a new priority clears what was handed on to it.
    pub(super) fn hands_on(&self, chain: &RankChain) -> bool {
        !self.even && chain.0 != RankChain::default().0
    }

    /// Hands the rank of the blocks behind it on to a block that stays. The blocks before it already have the ranks
    /// handed on earlier.
    pub(super) fn hand_on(&mut self, block: u32, chain: &RankChain) {
        self.keep(block, chain);
    }

    /// Hands the rank of the blocks behind it on to a block; returns all ranks handed on to it so far.
    fn keep(&mut self, block: u32, chain: &RankChain) -> Rank {
        let before = self.inherited(block);
        let kept = before.join(chain.0.at(self.now));
        if kept == before {
            return kept;
        }
        self.order[block].inherited = kept.floor;
        match kept.is_flat() {
            true => self.order.limits_mut().change(block, |limit| limit.inherited = None),
            // Without memory for a limit, the limit passes at once.
            false => drop(self.order.limits_mut().inherit(block, kept)),
        }
        kept
    }

    fn inherited(&self, block: u32) -> Rank {
        let limited = self.order.limit(block).and_then(|limit| limit.inherited);
        limited.map_or(Rank::flat(self.order[block].inherited), |rank| rank.at(self.now))
    }

    /// The rank that the policy computes from a block's own priority, whose limit is in the future.
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

    /// Number of blocks that the pool was made with; their indices are below this number.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Number of blocks that can be taken.
    pub fn available(&self) -> u32 {
        self.free_count() + self.cached
    }

    /// Number of blocks that can be taken and have no content.
    pub fn free_count(&self) -> u32 {
        self.free + (self.capacity - self.touched)
    }

    /// Number of blocks that are held.
    pub fn active_count(&self) -> u32 {
        self.active
    }

    /// Number of cached blocks: they are not held, and prompts can find their content.
    pub fn cached_count(&self) -> u32 {
        self.cached
    }

    /// Number of blocks that are never handed out again.
    pub fn retired_count(&self) -> u32 {
        self.retired
    }

    /// Number of cached blocks that were evicted so far.
    pub fn evictions(&self) -> u64 {
        self.evictions
    }

    /// The reference count of a block; 0 if it was never handed out.
    pub fn count(&self, block: u32) -> u32 {
        if block < self.touched { self.order[block].count() } else { 0 }
    }

    /// The set of a block. A block that was never handed out is free.
    pub fn set(&self, block: u32) -> BlockState {
        if block < self.touched { self.order[block].set } else { BlockState::Free }
    }

    /// True if a block is not held and prompts can find its content.
    pub fn is_cached(&self, block: u32) -> bool {
        self.set(block) == BlockState::Cached
    }

    /// Number of blocks handed out at least once; their indices are below this number.
    pub fn touched(&self) -> u32 {
        self.touched
    }

    /// Bytes of the bookkeeping of blocks, without time limits.
    pub fn bytes(&self) -> usize {
        self.order.bytes() + self.useful.as_ref().map_or(0, Usefulness::bytes)
    }

    /// Decrements a block's reference count. At zero, the caller must free, retire or cache the block next.
    pub(super) fn drop_count(&mut self, block: u32) -> u32 {
        let held = &mut self.order[block];
        assert!(held.count() > 0, "block {block} is not held");
        held.number -= 1;
        held.number
    }

    /// Undoes [`Blocks::drop_count`].
    pub(super) fn undo_drop(&mut self, block: u32) {
        self.order[block].number += 1;
    }

    /// Returns an error of the bookkeeping, if any: every block must be in exactly one set, the order must be complete,
    /// and the counters must add up. O(blocks ever handed out).
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
