//! Prefixes: what of a prompt is in the cache already, and whether there is room for the rest.
//!
//! ```text
//! held = planner.find(tokens, &identity, partial)?     its blocks are held until it is released or made a sequence
//! ```
//!
//! At most all tokens but the last are found, since its logits are needed. With a window, a prefix needs its sinks, what the next
//! token sees and the block of its own last token, as in a group of layers. O(tokens).

use super::blocks::PRIORITY_MAX;
use super::groups::{can_allocate_in_groups, explain_in_groups, find_in_groups};
use super::holding::Held;
use super::identity::Identity;
use super::prefix::{Explanation, Key, Unseen};
use super::sequences::{Counters, PagedPlanner};
use super::targets::reserve;
use crate::error::{Error, Result};

/// What a pool holds, in blocks, and what it has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Blocks in all.
    pub total: u32,
    /// Blocks with nothing in them.
    pub free: u32,
    /// Blocks that nobody holds, and that are found by their tokens.
    pub cached: u32,
    /// Blocks that somebody holds.
    pub active: u32,
    /// Blocks that were cached and had to make room.
    pub evictions: u64,
    /// What else was counted.
    pub counters: Counters,
}

impl PagedPlanner {
    /// The longest prefix of these tokens that is there, its blocks held; with `partial` also the start of a block, which its
    /// first writer gets a copy of, where there is no window.
    pub fn find(&mut self, tokens: &[u32], identity: &Identity, partial: bool) -> Result<Held> {
        if self.window.is_some() {
            let mut held = find_in_groups(&mut [self], tokens, identity, partial)?;
            return Ok(held.pop().expect("one group, one prefix"));
        }
        let index = &self.store.index;
        let found = index.find_prefix(&identity.root, tokens, &identity.extra)?;
        let mut length = found.blocks.len() as u32 * self.store.block_size;
        let mut blocks: Vec<Option<u32>> = Vec::new();
        reserve(&mut blocks, found.blocks.len() + 1)?;
        blocks.extend(found.blocks.iter().copied().map(Some));
        if partial && let Some((block, same)) = index.find_rest(&identity.root, tokens, &identity.extra, &found) {
            blocks.push(Some(block));
            length += same;
        }
        let held = self.hold_named(&blocks, length, identity, [found.keys.last().copied(), None])?;
        self.count_found(tokens.len(), length);
        Ok(held)
    }

    /// Counts a prompt that was looked for.
    pub(super) fn count_found(&mut self, asked: usize, found: u32) {
        self.counters.asked_tokens += asked as u64;
        self.counters.found_tokens += u64::from(found);
    }

    /// How far a prompt is found, and why no further.
    pub fn explain(&self, tokens: &[u32], identity: &Identity) -> Result<Explanation> {
        if self.window.is_some() {
            return explain_in_groups(&[self], tokens, identity);
        }
        let is_drafted = |key: &Key, place| self.is_drafted(key, place);
        self.store.index.explain_beside(&identity.root, tokens, &identity.extra, is_drafted)
    }

    /// What happened to the blocks that are found by their tokens, from a number on.
    #[must_use]
    pub fn events(&self, since: u64) -> Unseen<'_> {
        self.store.index.events().since(since)
    }

    /// Keeps the latest `capacity` events from now on.
    pub fn keep_events(&mut self, capacity: u32) {
        self.store.index.keep_events(capacity);
    }

    /// Nothing that is there is found by its tokens any more, nor what follows it in a sequence or a snapshot; blocks that nobody
    /// holds are free.
    pub fn forget_prefixes(&mut self) {
        for block in 0..self.store.blocks.touched() {
            if self.store.blocks.is_cached(block) {
                self.store.drop_content(block);
            }
        }
        self.store.index.clear();
        self.forgotten += 1;
        for of in self.sequences.iter_mut().flatten() {
            // What follows blocks without keys is found by none.
            of.content.chain.forget_before(self.forgotten);
        }
        self.changed();
    }

    /// Whether there is room for `tokens` tokens of a new sequence, and `watermark` blocks beside.
    #[must_use]
    pub fn can_allocate(&self, tokens: u32, watermark: u32) -> bool {
        let needed = tokens.div_ceil(self.store.block_size);
        u64::from(needed) + u64::from(watermark) <= self.store.blocks.available().into()
    }

    /// The same for a prompt whose start may be there: blocks that others hold cost nothing, those that nobody holds count.
    pub fn can_allocate_prompt(&self, tokens: &[u32], identity: &Identity, watermark: u32) -> Result<bool> {
        if self.window.is_some() {
            return can_allocate_in_groups(&[self], tokens, identity, watermark);
        }
        let found = self.store.index.find_prefix(&identity.root, tokens, &identity.extra)?;
        let shared = found.blocks.iter().filter(|&&block| self.store.blocks.count(block) > 0).count() as u64;
        let needed = (tokens.len() as u64).div_ceil(self.store.block_size.into()) - shared;
        Ok(needed + u64::from(watermark) <= self.store.blocks.available().into())
    }

    /// Says which blocks make room first, once nobody holds them: gives those that have some of these tokens of a sequence a
    /// priority from 0 to 100, until a time of [`PagedPlanner::advance_clock`], or for good. No tokens are no block.
    ///
    /// 1. The block of the lowest *rank* goes first; of equal ones the one that was let go of first.
    /// 2. A block's own rank is what the [`EvictionPolicy`](super::EvictionPolicy) makes of its priority and its place in the
    ///    sequence; without one it is the priority. That is 50 where none was given, and again from its limit on.
    /// 3. A block that is let go of hands its rank on to all blocks before it in the sequence that lets go of it, whether they go
    ///    with it or stay: a truncation or a restore, a fork that ends, a writer that gets a copy. A block's rank is the highest of
    ///    its own and of what was handed on to it, and hands that on in turn. So no block goes before those that followed it, which
    ///    could not be found without it.
    /// 4. Ranks with limits are joined: the highest until the limit, the highest from then on; of two limits the later one where
    ///    the rank falls, the earlier one where it rises. So it is at no time lower than one that it is made of.
    /// 5. A new priority takes away what was handed on to the block until then. The blocks before it keep what they have; itself it
    ///    may go before blocks that followed it and that were let go of already.
    /// 6. A block that left the window is let go of before those that follow it, which are found without it: it hands its rank on
    ///    to the sinks alone.
    /// 7. A copy that a writer gets begins with no priority, and with nothing handed on to it.
    pub fn retain(
        &mut self,
        sequence: u64,
        tokens: std::ops::Range<u32>,
        priority: u8,
        until: Option<u64>,
    ) -> Result<()> {
        if priority > PRIORITY_MAX {
            return Err(Error::argument("priority", u32::from(priority), "0 to 100"));
        }
        let (table, block_size) = (&self.sequence(sequence)?.content.table, self.store.block_size);
        let end = if tokens.is_empty() { 0 } else { tokens.end.div_ceil(block_size).min(table.len()) };
        let places = tokens.start / block_size..end;
        let mut blocks = Vec::new();
        reserve(&mut blocks, places.len())?;
        blocks.extend(places.filter_map(|place| self.chunks.get(table, place)));
        if until.is_some() {
            self.store.blocks.reserve_limits(blocks.len())?;
        }
        blocks.into_iter().try_for_each(|block| self.store.blocks.set_priority(block, priority, until))
    }

    /// Tells the time, by which blocks lose what [`PagedPlanner::retain`] gave them.
    pub fn advance_clock(&mut self, now: u64) {
        self.store.blocks.advance(now);
        self.changed();
    }

    /// Tokens of a block.
    #[must_use]
    pub fn block_size(&self) -> u32 {
        self.store.block_size
    }

    /// Layers of a block.
    #[must_use]
    pub fn num_layers(&self) -> u32 {
        self.store.num_layers
    }

    /// Blocks that can be taken, those that are cached included.
    #[must_use]
    pub fn free_count(&self) -> u32 {
        self.store.blocks.available()
    }

    /// Blocks in use, cached or free.
    #[must_use]
    pub fn total_count(&self) -> u32 {
        self.store.blocks.capacity()
    }

    /// Pages that are staged.
    #[must_use]
    pub fn staged_count(&self) -> u32 {
        self.store.staging.len()
    }

    /// The share of blocks in use, 0 to 1.
    #[must_use]
    pub fn pool_utilization(&self) -> f64 {
        match self.total_count() {
            0 => 0.0,
            total => f64::from(total - self.free_count()) / f64::from(total),
        }
    }

    /// Bytes of the bookkeeping of blocks and tables, beside the ids of tokens, what is listed for sequences and staged pages, and
    /// extras and events. O(1) but for the blocks' rows, O(rows / 1000).
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.store.bytes() + self.chunks.bytes()
    }

    /// What it holds, and what it has done.
    #[must_use]
    pub fn pool_stats(&self) -> PoolStats {
        let blocks = &self.store.blocks;
        PoolStats {
            total: blocks.capacity(),
            free: blocks.available() - blocks.cached_count(),
            cached: blocks.cached_count(),
            active: blocks.active_count(),
            evictions: blocks.evictions(),
            counters: self.counters,
        }
    }
}
