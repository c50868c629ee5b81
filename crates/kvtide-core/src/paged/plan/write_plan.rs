//! What a write will do: the slots that tokens go to, for low-bit pages the staging pages, and the copies before it.
//!
//! ```text
//! block held by others      the writer gets a copy of it
//! only found by others      it gets a copy while blocks are there; else the block is no longer found
//! ```
//!
//! Rows of a low-bit page go to a staging page until all its slots are written. A run that covers a whole page is quantised as it
//! comes. A run into a quantised page takes the page back to staging for the length of the call. Rows that a draft may take back are
//! always staged. A plan costs O(blocks and runs); of low-bit pages at most two runs a sequence cost O(layers).

use std::ops::Range;

use super::checked_write::{CheckedWrite, PlannerState, Share, WriteTarget, room};
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
    /// True if its rows go to staging pages, which the plan names.
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
    /// What lies in the staging page before the write.
    pub before: StagingContent,
    /// True if all slots are then written and committed: the page is quantised and its staging page given back.
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
    /// Rows of another page, to be overwritten by those of this page, which is quantised already.
    Sealed,
}

/// What a write to one or more sequences will do. Nothing has happened yet. A block that is still to be taken is in no sequence, so
/// bytes may be moved before the commit: if moving them fails, nobody sees them.
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
    /// The parent of each token, in its draft.
    parents: Option<Vec<i32>>,
    revision: u64,
}

impl WritePlan {
    /// The plan of a write without copies.
    pub(in crate::paged) fn new(write: CheckedWrite, state: PlannerState<'_>) -> Result<Self> {
        state.check_available(write.new_blocks())?;
        let mut plan = WritePlan::of(write, state)?;
        plan.fill(state, None)?;
        Ok(plan)
    }

    /// The plan of a write and of the copies it needs, each planned as if the other were not.
    pub(in crate::paged) fn with_copies(write: CheckedWrite, state: PlannerState<'_>) -> Result<(CopyPlan, Self)> {
        let (mut shared, needed) = (SharedBlocks::default(), write.new_blocks());
        if state.check_available(needed).is_err() {
            // The refusal counts the copies too.
            for share in &write.shares {
                shared.add_share(share, state)?;
            }
            shared.check_available(needed, state)?;
        }
        let mut plan = WritePlan::of(write, state)?;
        plan.fill(state, Some(&mut shared))?;
        Ok((shared.plan(needed, state)?, plan))
    }

    /// An empty plan with room for its runs.
    fn of(write: CheckedWrite, state: PlannerState<'_>) -> Result<Self> {
        let new_blocks = write.new_blocks() as u32;
        let CheckedWrite { layers, shares, parents, revision } = write;
        let of_share = |share: &Share| share.tokens.div_ceil(state.block_size()) as usize + 1;
        let mut runs = Vec::new();
        room(&mut runs, shares.iter().map(of_share).sum())?;
        let (pages, tokens, new_staged) = (Vec::new(), 0, 0);
        Ok(WritePlan { layers, tokens, new_blocks, shares, runs, pages, new_staged, parents, revision })
    }

    /// Redirects it to the copies that were planned with it and are there now. Its memory is reserved.
    pub(in crate::paged) fn follow_copies(&mut self, state: PlannerState<'_>) -> Result<()> {
        self.fill(state, None)?;
        self.revision = state.revision;
        Ok(())
    }

    /// Lists where the tokens of its shares go, and which blocks there others see. A second time needs no memory.
    fn fill(&mut self, state: PlannerState<'_>, mut shared: Option<&mut SharedBlocks>) -> Result<()> {
        let mut upcoming = state.tables.pool().blocks().upcoming().map(|next| next.block);
        self.tokens = 0;
        self.runs.clear();
        for at in 0..self.shares.len() {
            let share = self.shares[at];
            if share.tokens > 0 {
                self.add_runs(&share, state, &mut upcoming, shared.as_deref_mut())?;
            }
            self.shares[at].runs_end = self.runs.len() as u32;
            self.tokens += share.tokens;
        }
        if state.tables.pool().is_low_bit() { self.add_pages(state) } else { Ok(()) }
    }

    /// Adds the runs of one sequence, and its present blocks to those that others see; `upcoming` are the blocks it would get.
    fn add_runs(
        &mut self,
        share: &Share,
        state: PlannerState<'_>,
        upcoming: &mut impl Iterator<Item = u32>,
        mut shared: Option<&mut SharedBlocks>,
    ) -> Result<()> {
        let of = state.sequences.at(share.seat);
        if let Some(shared) = shared.as_deref_mut() {
            shared.add_tail(share, of, state)?;
        }
        let mut note = |place, block| match shared.as_deref_mut() {
            Some(shared) => shared.add(share.seat, of, (place, block), state),
            None => Ok(()),
        };
        let (size, held) = (state.block_size(), of.table());
        let is_low_bit = state.tables.pool().is_low_bit();
        let is_staged = |len| is_low_bit && (share.drafted || len < size);
        let (first, end) = (share.position / size, share.end.div_ceil(size));
        if end == first + 1
            && let Some(block) = state.tables.get(held, first)
        {
            // The common case: a few tokens into one present block.
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

    /// Adds the staged pages.
    fn add_pages(&mut self, state: PlannerState<'_>) -> Result<()> {
        let (pool, size) = (state.tables.pool(), state.block_size());
        let mut upcoming = pool.staging().upcoming();
        let mut next = || upcoming.next().expect("an endless number of staging pages");
        let (mut new_staged, mut place) = (0, 0);
        let mut pages = std::mem::take(&mut self.pages);
        pages.clear();
        for (share, runs, _) in self.shares() {
            let length = state.sequences.at(share.seat).length();
            let mut position = share.position;
            for run in runs {
                // Slots that hold tokens of the sequence; what lies behind them does not count.
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
                            let before = match staged < pool.staging().used() {
                                _ if pool.marks().has_any(block, layer, 0..kept) => StagingContent::Sealed,
                                true => StagingContent::Other,
                                false => StagingContent::Zeros,
                            };
                            (staged, before)
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
        (self.pages, self.new_staged) = (pages, new_staged);
        Ok(())
    }

    /// Keeps the first `tokens` tokens of each share and passes the slots that are given up to `cut`.
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

    /// What its commit needs.
    pub(in crate::paged) fn room(&self) -> Reservation {
        let shares = self.shares.len();
        Reservation {
            blocks: self.new_blocks as usize,
            marks: self.runs.len() + shares,
            tables: 2 * shares,
            staged: self.new_staged as usize,
        }
    }

    /// Each share with its runs, and with the parents of its tokens where they have some.
    pub(in crate::paged) fn shares(&self) -> impl Iterator<Item = (&Share, &[SlotRun], Option<&[i32]>)> {
        let (mut run, mut token) = (0, 0);
        self.shares.iter().map(move |share| {
            let (runs, tokens) = (run..share.runs_end as usize, token..token + share.tokens as usize);
            (run, token) = (runs.end, tokens.end);
            (share, &self.runs[runs], self.parents.as_ref().map(|parents| &parents[tokens]))
        })
    }

    pub(in crate::paged) fn num_shares(&self) -> usize {
        self.shares.len()
    }

    pub(in crate::paged) fn has_parents(&self) -> bool {
        self.parents.is_some()
    }

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

    /// The first token of each sequence, and the number of all tokens.
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

    /// The slots of the tokens, in order; they are the same in each layer.
    #[must_use]
    pub fn runs(&self) -> &[SlotRun] {
        &self.runs
    }

    /// The staged pages. Other low-bit pages are quantised as they come.
    #[must_use]
    pub fn pages(&self) -> &[PageWrite] {
        &self.pages
    }
}

/// A block to copy, in all layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockCopy {
    /// The block that others hold too.
    pub source: u32,
    /// The block that the writer gets.
    pub target: u32,
    /// Its staged pages: layer, staging page of the source, staging page of the target.
    pub staged: Vec<(u32, u32, u32)>,
    /// Where the writer sits, and the place of the block in its table.
    pub(in crate::paged) place: (u32, u32),
    /// Slots of the source that the writer's tokens lie in.
    pub(in crate::paged) kept: u32,
}

/// The copies that some writes need first.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a plan does nothing until it is committed"]
pub struct CopyPlan {
    copies: Vec<BlockCopy>,
    revision: u64,
}

impl CopyPlan {
    /// The copies that writes to these targets need. Refused if there are too few blocks for the copies and the writes.
    pub(in crate::paged) fn new(targets: &[WriteTarget], state: PlannerState<'_>) -> Result<Self> {
        let (mut shared, mut needed) = (SharedBlocks::default(), 0);
        for target in targets {
            let seat = state.sequences.seat(target.sequence)?;
            let share = Share::new(seat, state.sequences.at(seat), target, state.block_size());
            shared.add_share(&share, state)?;
            needed += u64::from(share.new_blocks);
        }
        shared.plan(needed, state)
    }

    /// The blocks to copy.
    #[must_use]
    pub fn copies(&self) -> &[BlockCopy] {
        &self.copies
    }

    pub(in crate::paged) fn revision(&self) -> u64 {
        self.revision
    }

    /// What its commit needs.
    pub(in crate::paged) fn room(&self) -> Reservation {
        let copies = self.copies.len();
        let staged = self.copies.iter().map(|copy| copy.staged.len()).sum();
        Reservation { blocks: copies, marks: 2 * copies, tables: copies, staged }
    }

    /// What the write after it needs in addition, with so many staged layers: a staged page stays for the others, and
    /// a copy that keeps no rows of it gets a staging page of its own.
    pub(in crate::paged) fn bare_room(&self, staged_layers: u32) -> Reservation {
        let bare = self.copies.iter().filter(|copy| copy.kept == 0).count();
        Reservation { staged: bare * staged_layers as usize, ..Reservation::default() }
    }
}

/// A block that a write would change while others could see it.
#[derive(Debug)]
struct SharedBlock {
    place: (u32, u32),
    block: u32,
    kept: u32,
    /// Others hold it; otherwise it only has a key.
    held: bool,
}

#[derive(Debug, Default)]
struct SharedBlocks(Vec<SharedBlock>);

impl SharedBlocks {
    /// Notes the blocks that a share is written to, as far as they are there.
    fn add_share(&mut self, share: &Share, state: PlannerState<'_>) -> Result<()> {
        if share.tokens == 0 {
            return Ok(());
        }
        let (of, size) = (state.sequences.at(share.seat), state.block_size());
        self.add_tail(share, of, state)?;
        let places = share.position / size..share.end.div_ceil(size).min(of.table().len());
        for (place, block) in places.clone().zip(state.tables.iter(of.table(), places.start)) {
            if let Some(block) = block {
                self.add(share.seat, of, (place, block), state)?;
            }
        }
        Ok(())
    }

    /// Notes the block with a sequence's last tokens if a share begins behind it: slots of it that were cut off must
    /// not come back when the sequence grows past them.
    fn add_tail(&mut self, share: &Share, of: &Sequence, state: PlannerState<'_>) -> Result<()> {
        let (length, size) = (of.length(), state.block_size());
        let place = length / size;
        if length < share.position
            && !length.is_multiple_of(size)
            && place < share.position / size
            && let Some(block) = state.tables.get(of.table(), place)
        {
            self.add(share.seat, of, (place, block), state)?;
        }
        Ok(())
    }

    /// Notes a block at a place of a sequence, if others could see it.
    fn add(&mut self, seat: u32, of: &Sequence, (place, block): (u32, u32), state: PlannerState<'_>) -> Result<()> {
        let held = state.tables.is_held_twice(of.table(), place, block);
        if held || state.tables.pool().index().key(block).is_some() {
            room(&mut self.0, 1)?;
            let kept = of.kept(place, state.block_size());
            self.0.push(SharedBlock { place: (seat, place), block, kept, held });
        }
        Ok(())
    }

    /// Refuses if there are too few blocks for the new ones and for copies of those that others hold.
    fn check_available(&self, new_blocks: u64, state: PlannerState<'_>) -> Result<()> {
        state.check_available(new_blocks + self.held())
    }

    fn held(&self) -> u64 {
        self.0.iter().filter(|shared| shared.held).count() as u64
    }

    /// Chooses which blocks are copied, and to which, beside a write that takes so many new ones.
    fn plan(mut self, new_blocks: u64, state: PlannerState<'_>) -> Result<CopyPlan> {
        self.check_available(new_blocks, state)?;
        let pool = state.tables.pool();
        let spare = u64::from(pool.blocks().available()) - new_blocks - self.held();
        let mut keyed = 0;
        self.0.retain(|shared| {
            keyed += u64::from(!shared.held);
            shared.held || keyed <= spare
        });
        let mut upcoming = pool.blocks().upcoming();
        let mut staging = pool.staging().upcoming();
        let mut plan = CopyPlan { copies: Vec::new(), revision: state.revision };
        room(&mut plan.copies, self.0.len())?;
        for SharedBlock { place, block, kept, .. } in self.0 {
            let target = upcoming.next().expect("a block that was counted available").block;
            let mut staged = Vec::new();
            for layer in 0..if pool.is_low_bit() && kept > 0 { pool.num_layers() } else { 0 } {
                if let Some(source) = pool.staging().get(Page { block, layer }) {
                    let target = staging.next().expect("an endless number of staging pages");
                    room(&mut staged, 1)?;
                    staged.push((layer, source, target));
                }
            }
            plan.copies.push(BlockCopy { source: block, target, staged, place, kept });
        }
        Ok(plan)
    }
}
