//! The plan of a write: the slots of its tokens, the staging pages of low-bit pages, and the copies before it.
//!
//! ```text
//! block held by others       the writer gets a copy
//! block that only has a key  the writer gets a copy if a block is available; else the block loses its key
//! ```
//!
//! Rows of a low-bit page go to a staging page until all of the page's slots are written; then the page is quantised. A
//! run that covers a whole page is quantised immediately. A run into a quantised page moves the page back to staging
//! during the call. Rows of drafts and steps are always staged, and stay staged until the draft or step ends, in
//! addition to the quantised form of pages that they complete: a query reads earlier pages quantised and its own page
//! in floats, regardless of the number of tokens in a step. A plan costs O(blocks and runs). For low-bit pages, the
//! runs of drafts and steps, and at most two runs of any other sequence, cost O(layers) each.

use std::ops::Range;

use super::checked_write::{CheckedWrite, PlannerState, Share, WriteTarget, Writer, room};
use super::page_write::{PageWrite, Seal, SlotRun, StagingContent};
use crate::error::{Error, Result};
use crate::paged::pages::Page;
use crate::paged::sequence::Sequence;
use crate::paged::table::Reservation;

/// The plan of a write to one or more sequences. Nothing has changed yet. A block that the write will take is in no
/// sequence, so its bytes may be moved before the commit: if moving them fails, no sequence sees them.
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
    /// The parent of each token in its draft.
    parents: Option<Vec<i32>>,
    revision: u64,
}

impl WritePlan {
    /// Plans a write without copies.
    pub(in crate::paged) fn new(write: CheckedWrite, state: PlannerState<'_>) -> Result<Self> {
        state.check_available(write.new_blocks())?;
        let mut plan = WritePlan::of(write, state)?;
        plan.fill(state, None)?;
        Ok(plan)
    }

    /// Plans a write and the copies it needs, each as if the other did not exist.
    pub(in crate::paged) fn with_copies(write: CheckedWrite, state: PlannerState<'_>) -> Result<(CopyPlan, Self)> {
        let (mut shared, needed) = (SharedBlocks::default(), write.new_blocks());
        if state.check_available(needed).is_err() {
            // The error counts the copies too.
            for share in &write.shares {
                shared.add_share(share, state)?;
            }
            shared.check_available(needed, state)?;
        }
        let mut plan = WritePlan::of(write, state)?;
        plan.fill(state, Some(&mut shared))?;
        Ok((shared.plan(needed, state)?, plan))
    }

    /// Returns an empty plan with memory reserved for its runs.
    fn of(write: CheckedWrite, state: PlannerState<'_>) -> Result<Self> {
        let new_blocks = write.new_blocks() as u32;
        let CheckedWrite { layers, shares, parents, revision } = write;
        let of_share = |share: &Share| match state.keeps_states {
            true => share.new_blocks as usize,
            false => share.tokens.div_ceil(state.block_size()) as usize + 1,
        };
        let mut runs = Vec::new();
        room(&mut runs, shares.iter().map(of_share).sum())?;
        let (pages, tokens, new_staged) = (Vec::new(), 0, 0);
        Ok(WritePlan { layers, tokens, new_blocks, shares, runs, pages, new_staged, parents, revision })
    }

    /// Points the plan at the copies that were planned with it, which now exist. Its memory is reserved.
    pub(in crate::paged) fn follow_copies(&mut self, state: PlannerState<'_>) -> Result<()> {
        self.fill(state, None)?;
        self.revision = state.revision;
        Ok(())
    }

    /// Lists the slots of an open step's plan again, after the blocks of its sequences have changed.
    pub(in crate::paged) fn follow_blocks(&mut self, state: PlannerState<'_>) -> Result<()> {
        self.fill(state, None)
    }

    /// True if a page that the plan fills is in a block that others hold as well.
    pub(in crate::paged) fn fills_shared(&self, share: &Share, runs: &[SlotRun], state: PlannerState<'_>) -> bool {
        let place = share.position / state.block_size();
        let held = |run: &SlotRun| state.tables.is_held_twice(state.sequences.at(share.seat).table(), place, run.block);
        let fills = |run: &SlotRun| self.pages.iter().any(|write| write.fills && write.page.block == run.block);
        // Others hold content from before the step, so at most the first of a step's blocks.
        runs.first().is_some_and(|run| run.slot > 0 && held(run) && fills(run))
    }

    /// Lists the slots of all shares, and the blocks among them that others see. A repeated call needs no memory.
    fn fill(&mut self, state: PlannerState<'_>, mut shared: Option<&mut SharedBlocks>) -> Result<()> {
        let mut upcoming = state.tables.pool().blocks().upcoming().map(|next| next.block);
        self.tokens = 0;
        self.runs.clear();
        for at in 0..self.shares.len() {
            let share = self.shares[at];
            if share.tokens > 0 && state.keeps_states {
                // Whole slots: rows of a state, not of tokens.
                for block in upcoming.by_ref().take(share.new_blocks as usize) {
                    let (len, token) = (state.block_size(), self.runs.len() as u32 * state.block_size());
                    self.runs.push(SlotRun { block, slot: 0, len, token, staged: false });
                }
            } else if share.tokens > 0 {
                self.add_runs(&share, state, &mut upcoming, shared.as_deref_mut())?;
            }
            self.shares[at].runs_end = self.runs.len() as u32;
            self.tokens += share.tokens;
        }
        if state.tables.pool().is_low_bit() { self.add_pages(state) } else { Ok(()) }
    }

    /// Adds the runs of one sequence, and those of its present blocks that others see. `upcoming` are the blocks it
    /// will take.
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
        let is_staged = |len| is_low_bit && (share.keeps_floats || len < size);
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

    /// Adds the writes to staged pages.
    fn add_pages(&mut self, state: PlannerState<'_>) -> Result<()> {
        let (pool, size) = (state.tables.pool(), state.block_size());
        let mut upcoming = pool.staging().upcoming();
        let mut next = || upcoming.next().expect("an endless number of staging pages");
        let (mut new_staged, mut place) = (0, 0);
        let mut pages = std::mem::take(&mut self.pages);
        pages.clear();
        for (share, runs, _) in self.shares() {
            let (of, mut position) = (state.sequences.at(share.seat), share.position);
            let (length, held) = (of.length(), of.table());
            for run in runs {
                // Slots that hold tokens of the sequence; later slots do not count.
                let kept = length.saturating_sub(position - run.slot).min(size);
                // Other holders read the floats of a block, so only a copy can give them up. A block that does not
                // exist yet has no holders.
                let at = position / size;
                let is_held = at < held.len() && state.tables.is_held_twice(held, at, run.block);
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
                    let completes = run.slot <= kept
                        && all_marked(0..run.slot)
                        && (end == size || kept == size && all_marked(end..kept));
                    room(&mut pages, 1)?;
                    let fills = completes && !share.drafted && !is_held;
                    pages.push(PageWrite { run: place - 1, page, staged, before, completes, fills });
                }
            }
        }
        (self.pages, self.new_staged) = (pages, new_staged);
        Ok(())
    }

    /// The memory that the plan's commit needs.
    pub(in crate::paged) fn room(&self) -> Reservation {
        let shares = self.shares.len();
        Reservation {
            blocks: self.new_blocks as usize,
            marks: self.runs.len() + shares,
            tables: 2 * shares,
            staged: self.new_staged as usize,
        }
    }

    /// Each share with its runs, and with the parents of its tokens if they have any.
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

    /// Returns an error if there is not one id for each token.
    pub(in crate::paged) fn check_tokens(&self, tokens: Option<&[u32]>) -> Result<()> {
        match tokens {
            Some(tokens) if tokens.len() != self.tokens as usize => {
                let expected = format!("{}, one for each token", self.tokens);
                Err(Error::argument("tokens.length", tokens.len(), expected))
            }
            _ => Ok(()),
        }
    }

    /// The slots of each sequence's tokens, in order.
    pub fn runs_of_sequences(&self) -> impl Iterator<Item = &[SlotRun]> {
        self.shares().map(|(_, runs, _)| runs)
    }

    /// The layers to which tokens are written.
    #[must_use]
    pub fn layers(&self) -> Range<u32> {
        self.layers.clone()
    }

    /// Number of tokens of all sequences.
    #[must_use]
    pub fn tokens(&self) -> u32 {
        self.tokens
    }

    /// The index of the first token of each sequence, and the number of all tokens.
    pub fn offsets(&self) -> impl Iterator<Item = u32> {
        let ends = self.shares.iter().scan(0, |end, share| {
            *end += share.tokens;
            Some(*end)
        });
        std::iter::once(0).chain(ends)
    }

    /// Number of blocks that the commit will take.
    #[must_use]
    pub fn new_blocks(&self) -> u32 {
        self.new_blocks
    }

    /// The slots of the tokens, in order. They are the same in each layer.
    #[must_use]
    pub fn runs(&self) -> &[SlotRun] {
        &self.runs
    }

    /// The runs that cover a whole page, for blocks of `size` tokens.
    pub fn whole_runs(&self, size: u32) -> impl Iterator<Item = &SlotRun> + Clone {
        self.runs.iter().filter(move |run| run.len == size)
    }

    /// The staged pages of some layers that the write completes with runs that do not cover the page.
    pub fn completed(&self, layers: Range<u32>, size: u32) -> impl Iterator<Item = Seal> {
        let completed = self.pages.iter().filter(move |write| {
            write.completes && layers.contains(&write.page.layer) && self.runs[write.run as usize].len < size
        });
        completed.map(|write| Seal { page: write.page, staged: write.staged })
    }

    /// The writes to staged pages. Runs that cover a low-bit page are quantised immediately, even if the page is
    /// staged.
    #[must_use]
    pub fn pages(&self) -> &[PageWrite] {
        &self.pages
    }
}

/// A block to copy in all layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockCopy {
    /// The block that others hold too.
    pub source: u32,
    /// The block that the writer gets.
    pub target: u32,
    /// The staged pages: layer, staging page of the source, staging page of the target.
    pub staged: Vec<(u32, u32, u32)>,
    /// The writer's seat, and the block's place in its table.
    pub(in crate::paged) place: (u32, u32),
    /// Slots of the source that contain the writer's tokens.
    pub(in crate::paged) kept: u32,
}

/// The copies that writes need before them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a plan does nothing until it is committed"]
pub struct CopyPlan {
    copies: Vec<BlockCopy>,
    revision: u64,
}

impl CopyPlan {
    /// Plans the copies for writes to these targets. Returns an error if there are too few blocks for the copies and
    /// the writes.
    pub(in crate::paged) fn new(targets: &[WriteTarget], state: PlannerState<'_>) -> Result<Self> {
        let (mut shared, mut needed) = (SharedBlocks::default(), 0);
        for target in targets {
            let seat = state.sequences.seat(target.sequence)?;
            let share = Share::new(seat, target, Writer::Direct, state);
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

    /// The memory that the plan's commit needs.
    pub(in crate::paged) fn room(&self) -> Reservation {
        let copies = self.copies.len();
        let staged = self.copies.iter().map(|copy| copy.staged.len()).sum();
        Reservation { blocks: copies, marks: 2 * copies, tables: copies, staged }
    }

    /// Additional memory that the write afterwards needs with this many staged layers: the other holders keep the
    /// staged page, and a copy that keeps no rows of it gets its own staging page.
    pub(in crate::paged) fn bare_room(&self, staged_layers: u32) -> Reservation {
        let bare = self.copies.iter().filter(|copy| copy.kept == 0).count();
        Reservation { staged: bare * staged_layers as usize, ..Reservation::default() }
    }
}

/// A block that a write would change while others can see it.
#[derive(Debug)]
struct SharedBlock {
    place: (u32, u32),
    block: u32,
    kept: u32,
    /// True if others hold it; false if it only has a key.
    held: bool,
}

#[derive(Debug, Default)]
struct SharedBlocks(Vec<SharedBlock>);

impl SharedBlocks {
    /// Adds the existing blocks that a share writes to.
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

    /// Adds the block with a sequence's last tokens if a share begins behind that block: slots that were cut off must
    /// not become visible again when the sequence grows past them.
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

    /// Adds a block at a place of a sequence if others can see it.
    fn add(&mut self, seat: u32, of: &Sequence, (place, block): (u32, u32), state: PlannerState<'_>) -> Result<()> {
        let held = state.tables.is_held_twice(of.table(), place, block);
        if held || state.tables.pool().index().key(block).is_some() {
            room(&mut self.0, 1)?;
            let kept = of.kept(place, state.block_size());
            self.0.push(SharedBlock { place: (seat, place), block, kept, held });
        }
        Ok(())
    }

    /// Returns an error if there are too few blocks for the new ones and for copies of those that others hold.
    fn check_available(&self, new_blocks: u64, state: PlannerState<'_>) -> Result<()> {
        state.check_available(new_blocks + self.held())
    }

    fn held(&self) -> u64 {
        self.0.iter().filter(|shared| shared.held).count() as u64
    }

    /// Decides the blocks to copy and their targets, beside a write that takes this many new blocks.
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
