//! The ranks of blocks: priorities, their time limits, and what goes from a block to those before it.
//!
//! ```text
//! own rank        what the policy makes of the block's priority, until its limit, and of the default one from then on
//! inherited       the highest of the blocks that were released behind it, with it or while it stayed; kept while it is held or
//!                 cached
//! listed with     own, inherited and the chain's joined
//! ```
//!
//! A head that others still hold when a tail of high rank is released therefore keeps that rank for its own release. A new
//! priority takes it away again. [`retain`](crate::paged::PagedPlanner::retain) has the rule, sentence by sentence. O(1), and
//! O(log limits) for what has a limit.

use super::rank::{Chain, Rank};
use super::{Blocks, PRIORITY_DEFAULT, PRIORITY_MAX, RANK_MAX, Released, Set};
use crate::error::{Error, Result};

impl Blocks {
    /// Gives a block that is active or cached a priority, 0 to 100, for good or until a time. Active ones are ranked by it
    /// when they are released. A cached one changes its place at once and counts as released now; whoever does that to
    /// blocks of one sequence does so from its tail on.
    pub fn set_priority(&mut self, block: u32, priority: u8, until: Option<u64>) -> Result<()> {
        if priority > PRIORITY_MAX {
            return Err(Error::argument("priority", u32::from(priority), "0 to 100"));
        }
        if !matches!(self.set(block), Set::Active | Set::Cached) {
            return Err(Error::InvalidBlock { block: block.into(), reason: "nothing is kept in it" });
        }
        let limit = until.filter(|until| *until > self.now);
        if limit.is_some() {
            self.limits.reserve(1)?;
        }
        let is_cached = self.is_cached(block);
        if is_cached {
            self.unlist(block);
        }
        match limit {
            Some(until) => self.limits.set_own(block, until),
            None => self.limits.remove(block),
        }
        self.even = false;
        let over = until.is_some_and(|until| until <= self.now);
        let held = &mut self.blocks[block];
        (held.priority, held.inherited) = (if over { PRIORITY_DEFAULT } else { priority }, 0);
        if is_cached {
            let own = self.own_rank(block, None);
            self.list(block, own);
        }
        Ok(())
    }

    /// Makes room for limits of so many blocks.
    pub(in crate::paged) fn reserve_limits(&mut self, blocks: usize) -> Result<()> {
        self.limits.reserve(blocks)
    }

    /// The priority of a block, as it stands now.
    #[must_use]
    pub fn priority(&self, block: u32) -> u8 {
        let over = self.limits.get(block).and_then(|limit| limit.own).is_some_and(|until| until <= self.now);
        if over || block >= self.touched { PRIORITY_DEFAULT } else { self.blocks[block].priority }
    }

    /// Tells the time, in whatever unit limits are given in: what is over by now goes back to the default priority, and among its
    /// equals where it was released. A time before the last one told is ignored.
    pub fn advance(&mut self, now: u64) {
        self.now = self.now.max(now);
        while let Some((block, rank)) = self.limits.pop(self.now) {
            self.blocks[block].rank = rank;
            self.forget_what_is_over(block);
        }
    }

    /// A block that nobody holds any more waits for its eviction.
    pub(super) fn cache(&mut self, block: u32, depth: u32, chain: &mut Chain) {
        self.forget_what_is_over(block);
        let kept = self.keep(block, chain);
        chain.0 = self.own_rank(block, Some(depth)).join(kept);
        self.blocks[block].set = Set::Cached;
        self.active -= 1;
        self.cached += 1;
        self.list(block, chain.0);
    }

    /// Whether what a chain has met means anything to the blocks before it that stay. Where all have one rank it does not: each
    /// has that rank of its own, until a priority takes away what it was handed.
    pub(in crate::paged) fn hands_on(&self, chain: &Chain) -> bool {
        !self.even && chain.0 != Chain::default().0
    }

    /// Lets a block that stays keep the rank of those behind it. What it kept before, those before it have as well.
    pub(in crate::paged) fn hand_on(&mut self, block: u32, chain: &Chain) {
        self.keep(block, chain);
    }

    /// Lets a block keep the rank of those behind it; gives all that it has kept.
    fn keep(&mut self, block: u32, chain: &Chain) -> Rank {
        let before = self.inherited(block);
        let kept = before.join(chain.0.at(self.now));
        if kept == before {
            return kept;
        }
        self.blocks[block].inherited = kept.floor;
        match kept.is_flat() {
            true => self.limits.change(block, |limit| limit.inherited = None),
            // Where there is no memory for a limit, it is over at once.
            false => drop(self.limits.inherit(block, kept)),
        }
        kept
    }

    fn inherited(&self, block: u32) -> Rank {
        let limited = self.limits.get(block).and_then(|limit| limit.inherited);
        limited.map_or(Rank::flat(self.blocks[block].inherited), |rank| rank.at(self.now))
    }

    /// What the policy makes of a block's own priority, whose limit lies ahead.
    fn own_rank(&self, block: u32, depth: Option<u32>) -> Rank {
        let ask = |priority| self.policy.rank(&Released { priority, depth }).min(RANK_MAX);
        let top = ask(self.blocks[block].priority);
        match self.limits.get(block).and_then(|limit| limit.own) {
            Some(until) => Rank { top, floor: ask(PRIORITY_DEFAULT), until },
            None => Rank::flat(top),
        }
    }

    fn forget_what_is_over(&mut self, block: u32) {
        let now = self.now;
        let mut over = false;
        self.limits.change(block, |limit| {
            over = limit.own.take_if(|until| *until <= now).is_some();
            limit.inherited.take_if(|rank| rank.until <= now);
        });
        if over {
            self.blocks[block].priority = PRIORITY_DEFAULT;
        }
    }
}
