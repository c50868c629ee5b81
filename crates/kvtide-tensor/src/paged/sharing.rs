//! Sequences that share blocks, and what of the pool is left.

use std::ops::Range;

use kvtide_core::paged::{Explanation, Key, PagedPlanner, PoolStats, Unseen};

use super::holding::PromptOptions;
use super::returns::Returned;
use crate::error::Result;
use crate::paged_kv_cache::PagedKvCache;

impl PagedKvCache {
    /// A new sequence with the tokens of another: O(1), all blocks are shared, and the first write into one copies it. What an
    /// open transaction holds counts as committed in the fork, and is found by no prompt, nor is what follows it there.
    pub fn fork(&mut self, sequence: u64) -> Result<u64> {
        self.change()?;
        Ok(self.planner.fork(sequence)?)
    }

    /// Ends a sequence if there is one of this number: at once, or, while someone reads the cache, at the next change. Never
    /// refused.
    pub fn release_sequence(&mut self, sequence: u64) {
        self.returns.add(Returned::Sequence(sequence));
        // What refuses the change now is told to whoever makes the next one.
        let _ = self.change();
    }

    /// Drops a sequence's tokens from `length` on.
    pub fn truncate(&mut self, sequence: u64, length: u32) -> Result<()> {
        self.change()?;
        Ok(self.planner.truncate(sequence, length)?)
    }

    /// Gives sequences blocks for so many tokens in total each; takes all that are missing, or none.
    pub fn ensure_capacities(&mut self, wanted: &[(u64, u32)]) -> Result<()> {
        self.change()?;
        Ok(self.planner.ensure_capacity(wanted)?)
    }

    /// Whether there is room for `tokens` tokens of a new sequence, and `watermark` blocks beside.
    pub fn can_allocate(&mut self, tokens: u32, watermark: u32) -> Result<bool> {
        self.collect()?;
        Ok(self.planner.can_allocate(tokens, watermark))
    }

    /// The same for a prompt, whose start may be there: blocks that others hold cost nothing.
    pub fn can_allocate_prompt(&mut self, tokens: &[u32], options: PromptOptions<'_>, watermark: u32) -> Result<bool> {
        self.collect()?;
        let identity = self.identity(options)?;
        Ok(self.planner.can_allocate_prompt(tokens, &identity, watermark)?)
    }

    /// Says which blocks make room first, once nobody holds them: those of some tokens of a sequence get a priority from 0 to 100,
    /// 50 where none was given; until a time of [`PagedKvCache::advance_clock`], or for good. What follows from it says
    /// [`PagedPlanner::retain`](kvtide_core::paged::PagedPlanner::retain).
    pub fn retain(&mut self, sequence: u64, tokens: Range<u32>, priority: u8, until: Option<u64>) -> Result<()> {
        self.change()?;
        Ok(self.planner.retain(sequence, tokens, priority, until)?)
    }

    /// Tells the time, in whatever unit: priorities that were given until then are over.
    pub fn advance_clock(&mut self, now: u64) -> Result<()> {
        self.change()?;
        self.planner.advance_clock(now);
        Ok(())
    }

    /// How far a prompt is found, and why no further. For whoever runs the cache: it tells of other tenants' prompts.
    pub fn explain(&mut self, tokens: &[u32], options: PromptOptions<'_>) -> Result<Explanation> {
        self.collect()?;
        let identity = self.identity(options)?;
        Ok(self.planner.explain(tokens, &identity)?)
    }

    /// The names of the whole blocks of a prompt, whether they are there or not. What they depend on, and how to have them without
    /// a cache, is said at [`PrefixNamer`](crate::PrefixNamer).
    pub fn keys(&self, tokens: &[u32], options: PromptOptions<'_>) -> Result<Vec<Key>> {
        Ok(self.planner.keys(tokens, &self.identity(options)?)?)
    }

    /// The names of all blocks that can be found, in no order. O(blocks).
    pub fn indexed_keys(&self) -> Result<Vec<Key>> {
        Ok(self.planner.indexed_keys()?)
    }

    /// Nothing that is there is found any more.
    pub fn forget_prefixes(&mut self) -> Result<()> {
        self.change()?;
        self.planner.forget_prefixes();
        Ok(())
    }

    /// What happened to the blocks that can be found, from a number on.
    #[must_use]
    pub fn events(&self, since: u64) -> Unseen<'_> {
        self.planner.events(since)
    }

    /// What the pool holds, in blocks, and what it has done.
    pub fn pool_stats(&mut self) -> Result<PoolStats> {
        self.collect()?;
        Ok(self.planner.pool_stats())
    }

    /// Tokens of a sequence that no transaction can take back; 0 for an unknown one.
    #[must_use]
    pub fn committed_length(&self, sequence: u64) -> u32 {
        self.planner.committed_length(sequence)
    }

    /// Refuses a change when there can be none now; else takes back what was dropped since the last one.
    pub(crate) fn change(&mut self) -> Result<()> {
        self.check_change()?;
        self.collect()
    }

    /// Takes back what was dropped since the last call. Reads do so too: what is shown is never of a step that is gone.
    pub(crate) fn collect(&mut self) -> Result<()> {
        self.check()?;
        let mut returned = self.returns.take().into_iter();
        let done = returned.by_ref().try_for_each(|of| self.take_back(of));
        // What comes behind a failure is taken back another time.
        returned.for_each(|of| self.returns.add(of));
        done
    }

    /// The bookkeeping, once what was dropped is taken back: where there is no memory for that, as it was before.
    pub(crate) fn current(&mut self) -> &PagedPlanner {
        let _ = self.collect();
        &self.planner
    }

    fn take_back(&mut self, returned: Returned) -> Result<()> {
        match returned {
            Returned::Held(id) => {
                if let Some(held) = self.held.remove(&id) {
                    self.planner.release(held);
                }
            }
            Returned::Sequence(sequence) => match self.planner.drop_sequence(sequence) {
                // It was dropped before.
                Ok(()) | Err(kvtide_core::Error::SequenceNotFound { .. }) => {}
                Err(refusal) => {
                    self.returns.add(Returned::Sequence(sequence));
                    return Err(refusal.into());
                }
            },
            Returned::Step(plan) => {
                if let Err(refusal) = self.planner.undo_step(&plan) {
                    self.returns.add(Returned::Step(plan));
                    return Err(refusal.into());
                }
            }
        }
        Ok(())
    }
}
