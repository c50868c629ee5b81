//! What writing tokens will do: which slots they go to, and, for low-bit pages, through which staging pages.
//!
//! Rows of low-bit pages go to a staging page until all slots of the page are written; a run that covers a page is quantised as it
//! comes, and a run into a page that was quantised takes the page back to staging for the length of the call. What a draft may take
//! back is staged whole.
//!
//! A plan costs O(blocks and runs), for low-bit pages times the layers for at most two runs a sequence.

use std::ops::Range;

use super::copy_plan::{CopyPlan, SharedBlocks};
use super::share::{CheckedWrite, Share};
use super::state::{PlannerState, room};
use crate::error::{Error, Result};
use crate::paged::pages::Page;
use crate::paged::sequence::Sequence;
use crate::paged::table::Reservation;

/// Neighbouring slots of one block that get neighbouring tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotRun {
    /// Index of the block.
    pub block: u32,
    /// The first slot.
    pub slot: u32,
    /// How many.
    pub len: u32,
    /// The first of the tokens, counted in the call.
    pub token: u32,
    /// True when its rows go to staging pages: the plan names them.
    pub staged: bool,
}

/// A part of a low-bit page that is written: the rows go to its staging page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageWrite {
    /// Which run of the plan.
    pub run: u32,
    /// The page.
    pub page: Page,
    /// Its staging page.
    pub staged: u32,
    /// What lies in the staging page.
    pub before: StagingContent,
    /// True when all slots are written and committed then: the page is quantised, and its staging page given back.
    pub fills: bool,
}

/// What lies in a staging page before a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StagingContent {
    /// The page's rows, and zeros.
    Own,
    /// Zeros: nobody has used it.
    Zeros,
    /// Rows of another page, to be zeroed.
    Other,
    /// Rows of another page, to be written over by those of this one, which is quantised already.
    Sealed,
}

/// A page to quantise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal {
    /// The page.
    pub page: Page,
    /// The staging page with its rows.
    pub staged: u32,
}

/// What writing tokens of one or more sequences will do. Nothing has happened yet: blocks are still free, slots not marked.
///
/// A block yet to be taken is in no other sequence, so bytes may be moved before the commit: if moving them fails, nobody
/// sees what was written to it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a plan does nothing until it is committed"]
pub struct WritePlan {
    layers: Range<u32>,
    tokens: u32,
    new_blocks: u32,
    shares: Vec<Share>,
    runs: Vec<SlotRun>,
    pages: Vec<PageWrite>,
    new_staged: u32,
    staging_pages: u32,
    /// For each token the one of its draft that it follows.
    parents: Option<Vec<i32>>,
    revision: u64,
}

impl WritePlan {
    /// Where the tokens of a write go.
    pub(in crate::paged) fn new(write: CheckedWrite, state: PlannerState<'_>) -> Result<Self> {
        state.check_available(write.new_blocks())?;
        let mut plan = WritePlan::of(write, state)?;
        plan.fill(state, None)?;
        Ok(plan)
    }

    /// The same, with the copies of blocks that others see as well: both are planned as if the other were not.
    pub(in crate::paged) fn with_copies(write: CheckedWrite, state: PlannerState<'_>) -> Result<(CopyPlan, Self)> {
        let (mut shared, needed) = (SharedBlocks::default(), write.new_blocks());
        if state.check_available(needed).is_err() {
            // Refused with all blocks that there would have to be.
            for share in &write.shares {
                shared.add_share(share, state.sequences.at(share.seat), state)?;
            }
            shared.check_available(needed, state)?;
        }
        let mut plan = WritePlan::of(write, state)?;
        plan.fill(state, Some(&mut shared))?;
        Ok((shared.plan(needed, state)?, plan))
    }

    /// A plan of a write, with room for its runs.
    fn of(write: CheckedWrite, state: PlannerState<'_>) -> Result<Self> {
        let new_blocks = write.new_blocks() as u32;
        let CheckedWrite { layers, shares, parents, revision } = write;
        let of_share = |share: &Share| share.tokens.div_ceil(state.block_size()) as usize + 1;
        let mut runs = Vec::new();
        room(&mut runs, shares.iter().map(of_share).sum())?;
        let (pages, tokens, new_staged, staging_pages) = (Vec::new(), 0, 0, 0);
        Ok(WritePlan { layers, tokens, new_blocks, shares, runs, pages, new_staged, staging_pages, parents, revision })
    }

    /// Makes it write to the blocks as they are now, behind the copies that were planned with it. There is memory for it.
    pub(in crate::paged) fn follow_copies(&mut self, state: PlannerState<'_>) -> Result<()> {
        self.fill(state, None)?;
        self.revision = state.revision;
        Ok(())
    }

    /// Writes down where the tokens of its shares go, and which blocks there others see. Once done, it can be done again without memory.
    fn fill(&mut self, state: PlannerState<'_>, mut shared: Option<&mut SharedBlocks>) -> Result<()> {
        let mut upcoming = state.tables.pool().blocks().upcoming().map(|next| next.block);
        self.tokens = 0;
        self.runs.clear();
        for at in 0..self.shares.len() {
            let share = self.shares[at];
            let of = state.sequences.at(share.seat);
            if let Some(shared) = shared.as_deref_mut() {
                shared.add_tail(&share, of, state)?;
            }
            self.add_runs(&share, of, state, &mut upcoming, |place, block| match shared.as_deref_mut() {
                Some(shared) => shared.add(share.seat, of, (place, block), state),
                None => Ok(()),
            })?;
            self.shares[at].runs_end = self.runs.len() as u32;
            self.tokens += share.tokens;
        }
        if state.tables.pool().is_low_bit() { self.add_pages(state) } else { Ok(()) }
    }

    /// Adds the runs of one sequence, and notes the blocks that are there; `upcoming` are those that it would get.
    fn add_runs(
        &mut self,
        share: &Share,
        of: &Sequence,
        state: PlannerState<'_>,
        upcoming: &mut impl Iterator<Item = u32>,
        mut note: impl FnMut(u32, u32) -> Result<()>,
    ) -> Result<()> {
        if share.tokens == 0 {
            return Ok(());
        }
        let (size, held) = (state.block_size(), of.table());
        let is_low_bit = state.tables.pool().is_low_bit();
        let is_staged = |len| is_low_bit && (share.drafted || len < size);
        let (first, end) = (share.position / size, share.end.div_ceil(size));
        if end == first + 1
            && let Some(block) = state.tables.get(held, first)
        {
            // Most often a token or a few, into a block that is there.
            let (slot, len) = (share.position % size, share.tokens);
            self.runs.push(SlotRun { block, slot, len, token: self.tokens, staged: is_staged(len) });
            return note(first, block);
        }
        let skipped = first.saturating_sub(held.len()) as usize;
        let new = upcoming.by_ref().take(share.new_blocks as usize).skip(skipped);
        let there = state.tables.iter(held, first).map(|block| block.expect("a block that was not cleared"));
        let mut done = 0;
        for (place, block) in (first..end).zip(there.chain(new)) {
            let slot = (share.position + done) % size;
            let len = (size - slot).min(share.tokens - done);
            self.runs.push(SlotRun { block, slot, len, token: self.tokens + done, staged: is_staged(len) });
            done += len;
            if place < held.len() {
                note(place, block)?;
            }
        }
        assert_eq!(done, share.tokens, "each token has a slot");
        Ok(())
    }

    /// Adds the low-bit pages that are written in floats.
    fn add_pages(&mut self, state: PlannerState<'_>) -> Result<()> {
        let (pool, size) = (state.tables.pool(), state.block_size());
        let mut upcoming = pool.staging().upcoming();
        let mut next = || upcoming.next().expect("an endless number of staging pages");
        let (mut new_staged, mut staging_pages, mut place) = (0, 0, 0);
        let mut pages = std::mem::take(&mut self.pages);
        pages.clear();
        for (share, runs) in self.shares() {
            let length = state.sequences.at(share.seat).length();
            let mut position = share.position;
            for run in runs {
                // Slots that hold tokens of the sequence; what others left behind them does not count.
                let kept = length.saturating_sub(position - run.slot).min(size);
                position += run.len;
                place += 1;
                for layer in self.layers.clone().filter(|_| run.staged) {
                    let (block, end) = (run.block, run.slot + run.len);
                    let page = Page { block, layer };
                    let (staged, before) = match pool.staging().get(page) {
                        Some(staged) => (staged, StagingContent::Own),
                        None => {
                            let staged = next();
                            new_staged += 1;
                            staging_pages = staging_pages.max(staged + 1);
                            let sealed = pool.marks().has_any(block, layer, 0..kept);
                            let other = if staged < pool.staging().used() {
                                StagingContent::Other
                            } else {
                                StagingContent::Zeros
                            };
                            (staged, if sealed { StagingContent::Sealed } else { other })
                        }
                    };
                    let all_marked = |slots| pool.marks().has_all(block, layer, slots);
                    let fills = !share.drafted
                        && run.slot <= kept
                        && all_marked(0..run.slot)
                        && (end == size || kept == size && all_marked(end..kept));
                    room(&mut pages, 1)?;
                    pages.push(PageWrite { run: place - 1, page, staged, before, fills });
                }
            }
        }
        (self.pages, self.new_staged, self.staging_pages) = (pages, new_staged, staging_pages);
        Ok(())
    }

    /// Keeps the first `tokens` tokens of each share; `cut` is told the slots that are given up.
    pub(in crate::paged) fn shorten(&mut self, tokens: u32, size: u32, mut cut: impl FnMut(u32, Range<u32>)) {
        let (mut first, mut kept_runs) = (0, 0);
        (self.tokens, self.new_blocks) = (0, 0);
        for share in &mut self.shares {
            let own = first as usize..share.runs_end as usize;
            first = share.runs_end;
            let mut left = tokens;
            for at in own {
                let run = self.runs[at];
                let kept = run.len.min(left);
                if kept < run.len {
                    cut(run.block, run.slot + kept..run.slot + run.len);
                }
                if kept > 0 {
                    self.runs[kept_runs] = SlotRun { len: kept, token: self.tokens + tokens - left, ..run };
                    kept_runs += 1;
                }
                left -= kept;
            }
            *share = share.shortened(tokens, size);
            share.runs_end = kept_runs as u32;
            self.tokens += tokens;
            self.new_blocks += share.new_blocks;
        }
        self.runs.truncate(kept_runs);
    }

    /// Memory that the bookkeeping needs for it.
    pub(in crate::paged) fn room(&self) -> Reservation {
        let shares = self.shares.len();
        Reservation {
            blocks: self.new_blocks as usize,
            marks: self.runs.len() + shares,
            tables: 2 * shares,
            staged: self.new_staged as usize,
        }
    }

    /// Each share with its runs.
    pub(in crate::paged) fn shares(&self) -> impl Iterator<Item = (&Share, &[SlotRun])> {
        let mut first = 0;
        self.shares.iter().map(move |share| {
            let runs = &self.runs[first as usize..share.runs_end as usize];
            first = share.runs_end;
            (share, runs)
        })
    }

    /// Each share with the parents of its tokens, where they have some.
    pub(in crate::paged) fn shares_with_parents(&self) -> impl Iterator<Item = (&Share, Option<&[i32]>)> {
        let mut done = 0;
        self.shares.iter().map(move |share| {
            let tokens = done as usize..(done + share.tokens) as usize;
            done += share.tokens;
            (share, self.parents.as_ref().map(|parents| &parents[tokens]))
        })
    }

    pub(in crate::paged) fn num_shares(&self) -> usize {
        self.shares.len()
    }

    pub(in crate::paged) fn has_parents(&self) -> bool {
        self.parents.is_some()
    }

    /// Before which change it was made.
    pub(in crate::paged) fn revision(&self) -> u64 {
        self.revision
    }

    /// Refuses ids that are not one for each token.
    pub(in crate::paged) fn check_tokens(&self, tokens: Option<&[u32]>) -> Result<()> {
        match tokens {
            Some(tokens) if tokens.len() != self.tokens as usize => {
                let expected = format!("{}, one for each token", self.tokens);
                Err(Error::argument("tokens.length", tokens.len(), expected))
            }
            _ => Ok(()),
        }
    }

    /// The layers that get tokens.
    #[must_use]
    pub fn layers(&self) -> Range<u32> {
        self.layers.clone()
    }

    /// Tokens of all sequences.
    #[must_use]
    pub fn tokens(&self) -> u32 {
        self.tokens
    }

    /// Where the tokens of each sequence begin, and where the last ones end.
    pub fn offsets(&self) -> impl Iterator<Item = u32> {
        let ends = self.shares.iter().scan(0, |end, share| {
            *end += share.tokens;
            Some(*end)
        });
        std::iter::once(0).chain(ends)
    }

    /// Blocks that the commit will take.
    #[must_use]
    pub fn new_blocks(&self) -> u32 {
        self.new_blocks
    }

    /// Where the tokens go, in their order; the same slots in each layer.
    #[must_use]
    pub fn runs(&self) -> &[SlotRun] {
        &self.runs
    }

    /// The low-bit pages that are written in floats. The others are quantised as they come.
    #[must_use]
    pub fn pages(&self) -> &[PageWrite] {
        &self.pages
    }

    /// Staging pages that there must be.
    #[must_use]
    pub fn staging_pages(&self) -> u32 {
        self.staging_pages
    }
}
