//! Writes: which slots tokens go to, what that takes, and what it leaves behind.
//!
//! ```text
//! write = planner.check_append(&append)?               refused: nothing has changed
//! (copies, plan) = planner.plan_write(write)?          as if there were no copies
//! pages = planner.reserve_after(&copies, &plan)?       memory of both, in the bookkeeping
//! executor makes room for so many staging pages, then copies the blocks
//! planner.commit_copies_before(&copies, &mut plan)?    the plan writes to the copies now, and is no longer refused
//! executor moves the bytes
//! planner.commit(&plan, tokens)?                       blocks taken, slots marked, lengths moved on, blocks found by their keys
//! ```
//!
//! Nothing is copied before the memory of everything that follows is there: a refused call leaves no copy behind. A commit costs
//! O(runs * layers).

use std::ops::Range;

use super::paged_planner::PagedPlanner;
use crate::count::COUNT_MAX;
use crate::error::{Error, Result, reserve};
use crate::paged::plan::{
    Append, CheckedWrite, CopyPlan, Share, SharedBlocks, StagingContent, WritePlan, WriteTarget, Writer,
};
use crate::paged::table::Reservation;

impl PagedPlanner {
    /// What [`PagedPlanner::plan_tokens`] will write, for the copies before it.
    pub fn tokens_target(&self, sequence: u64, layer: u32, position: u32, tokens: u32) -> Result<WriteTarget> {
        self.check_layer(layer)?;
        if position >= COUNT_MAX {
            return Err(Error::argument("pos", position, format!("below {COUNT_MAX}")));
        }
        let target = WriteTarget { sequence, position, tokens };
        target.check(self.sequences.find(sequence)?, Writer::Direct, self.state())?;
        Ok(target)
    }

    /// What [`PagedPlanner::plan_append`] will write, for the copies before it.
    pub fn append_targets(&self, append: &Append<'_>) -> Result<Vec<WriteTarget>> {
        let mut targets = Vec::new();
        reserve(&mut targets, append.sequences.len(), "sequences and blocks of a call")?;
        append.each_target(self.state(), |_, _, target| targets.push(target))?;
        Ok(targets)
    }

    /// The copies that these writes need first; refused when there are not enough blocks for them and for the writes.
    pub fn plan_copies(&self, targets: &[WriteTarget]) -> Result<CopyPlan> {
        let (mut shared, mut needed) = (SharedBlocks::default(), 0);
        for target in targets {
            let seat = self.sequences.seat(target.sequence)?;
            let of = self.sequences.at(seat);
            let share = Share::new(seat, of, target, self.block_size());
            shared.add_share(&share, of, self.state())?;
            needed += u64::from(share.new_blocks);
        }
        shared.plan(needed, self.state())
    }

    /// Checks an append: refused as [`PagedPlanner::plan_append`] is, but for blocks that are not there.
    pub fn check_append(&self, append: &Append<'_>) -> Result<CheckedWrite> {
        CheckedWrite::of_append(append, self.state())
    }

    /// Checks tokens of one layer: refused as [`PagedPlanner::plan_tokens`] is, but for blocks that are not there.
    pub fn check_tokens(&self, sequence: u64, layer: u32, position: u32, tokens: u32) -> Result<CheckedWrite> {
        let target = self.tokens_target(sequence, layer, position, tokens)?;
        CheckedWrite::of_layer(layer, &target, self.state())
    }

    /// Where the tokens of a write would go, and the copies that it needs first, in one go; changes nothing. Refused when there are
    /// not enough blocks for both.
    pub fn plan_write(&self, write: CheckedWrite) -> Result<(CopyPlan, WritePlan)> {
        self.check_revision(write.revision())?;
        WritePlan::with_copies(write, self.state())
    }

    /// Where tokens of one layer would be written, and what that takes; changes nothing. Slots may be written again.
    pub fn plan_tokens(&self, sequence: u64, layer: u32, position: u32, tokens: u32) -> Result<WritePlan> {
        WritePlan::new(self.check_tokens(sequence, layer, position, tokens)?, self.state())
    }

    /// Where tokens of all layers would be appended to sequences, and what that takes; changes nothing.
    pub fn plan_append(&self, append: &Append<'_>) -> Result<WritePlan> {
        WritePlan::new(self.check_append(append)?, self.state())
    }

    /// Takes the memory that the commit will need for its bookkeeping. A plan that would no longer come out the same, because
    /// the cache has changed since, is refused.
    pub fn reserve(&mut self, plan: &WritePlan) -> Result<()> {
        self.check_revision(plan.revision())?;
        self.reserve_write(plan, Reservation::default()).map(drop)
    }

    /// The same for a plan and the copies that it needs first, of which it knows nothing yet; answers the staging pages that
    /// there must be for both. Once it was granted, [`PagedPlanner::commit_copies_before`] and what follows it are not refused.
    pub fn reserve_after(&mut self, copies: &CopyPlan, plan: &WritePlan) -> Result<u32> {
        self.check_revision(plan.revision())?;
        self.check_revision(copies.revision())?;
        let pool = self.tables.pool();
        let staged_layers = if pool.is_low_bit() { pool.num_layers() } else { 0 };
        let room = self.reserve_write(plan, copies.room() + copies.bare_room(staged_layers))?;
        Ok(self.tables.staging_pages(room))
    }

    /// Takes the memory for a write and for what comes before it; gives how much that is.
    fn reserve_write(&mut self, plan: &WritePlan, before: Reservation) -> Result<Reservation> {
        for (share, _) in plan.shares().filter(|(share, _)| share.drafted) {
            let of = self.sequences.at_mut(share.seat);
            of.drafts_mut().reserve(share.tokens)?;
            if plan.has_parents() {
                of.reserve_parents(share.tokens as usize)?;
            }
        }
        let room = before + plan.room();
        self.tables.reserve(room)?;
        Ok(room)
    }

    /// Gives the writers the blocks that were copied for them. Refused as any plan that is no longer up to date.
    pub fn commit_copies(&mut self, plan: &CopyPlan) -> Result<()> {
        self.check_revision(plan.revision())?;
        if plan.copies().is_empty() {
            return Ok(());
        }
        self.tables.reserve(plan.room())?;
        let pool = self.tables.pool_mut();
        for copy in plan.copies() {
            assert_eq!(pool.take(), copy.target, "blocks are handed out as announced");
            let staged = copy.staged.iter().map(|&(layer, _, staged)| (layer, staged));
            pool.copy(copy.source, copy.target, copy.kept(), staged);
        }
        // Only now are blocks let go of, and may be free: those of each sequence from its end on.
        for of_sequence in plan.copies().chunk_by(|one, next| one.place().0 == next.place().0) {
            let copies = of_sequence.iter().map(|copy| (copy.place().1, copy.target));
            self.sequences.at_mut(of_sequence[0].place().0).replace(copies, &mut self.tables);
        }
        self.counters.copies += plan.copies().len() as u64;
        self.changed();
        Ok(())
    }

    /// The same, and then a plan that was made beside them writes to the copies. With the memory of
    /// [`PagedPlanner::reserve_after`] it is refused as any plan that is no longer up to date, and never else.
    pub fn commit_copies_before(&mut self, copies: &CopyPlan, plan: &mut WritePlan) -> Result<()> {
        self.check_revision(plan.revision())?;
        self.commit_copies(copies)?;
        if copies.copies().is_empty() { Ok(()) } else { plan.follow_copies(self.state()) }
    }

    /// Notes a write in the bookkeeping: all of it, or nothing. `tokens` are the ids of the plan's tokens, where they are
    /// known. It is refused as [`PagedPlanner::reserve`] refuses it, and never after that.
    pub fn commit(&mut self, plan: &WritePlan, tokens: Option<&[u32]>) -> Result<()> {
        plan.check_tokens(tokens)?;
        self.reserve(plan)?;
        self.occupy(plan);
        self.mark(plan, plan.layers());
        self.advance(plan, tokens);
        self.changed();
        Ok(())
    }

    /// Takes a plan's blocks and staging pages; what it writes to is the writers' alone from now on.
    pub(super) fn occupy(&mut self, plan: &WritePlan) {
        let size = self.block_size();
        for (share, runs) in plan.shares() {
            for run in runs {
                // Where there was no block to copy it to: nobody else holds it, and nobody finds it any more.
                self.tables.pool_mut().unname(run.block);
            }
            let of = self.sequences.at_mut(share.seat);
            let (length, kept) = (of.length(), of.length() % size);
            if share.end > length && kept > 0 {
                // What the last block holds behind the sequence's tokens was cut off while others held it too.
                let appended = runs.first().filter(|_| share.position == length).map(|run| run.block);
                if let Some(block) = appended.or_else(|| self.tables.get(of.table(), length / size)) {
                    self.tables.pool_mut().unname(block);
                    self.tables.pool_mut().unmark(block, kept..size);
                }
            }
            of.add_blocks(share.new_blocks, &mut self.tables);
        }
        for write in plan.pages().iter().filter(|write| write.before != StagingContent::Own) {
            self.tables.pool_mut().stage(write.page, write.staged);
        }
    }

    /// Marks the slots of a plan in some layers.
    pub(super) fn mark(&mut self, plan: &WritePlan, layers: Range<u32>) {
        for run in plan.runs() {
            self.tables.pool_mut().mark(run.block, layers.clone(), run.slot..run.slot + run.len, run.staged);
        }
    }

    /// Moves lengths on, and gives up the staging pages of what is quantised.
    pub(super) fn advance(&mut self, plan: &WritePlan, tokens: Option<&[u32]>) {
        let pool = self.tables.pool_mut();
        plan.pages().iter().filter(|write| write.fills).for_each(|write| pool.unstage(write.page));
        for ((share, runs), (_, parents)) in plan.shares().zip(plan.shares_with_parents()) {
            for run in runs.iter().filter(|_| tokens.is_some()) {
                let ids = tokens.map_or(&[][..], |ids| &ids[run.token as usize..(run.token + run.len) as usize]);
                self.tables.pool_mut().set_tokens(run.block, run.slot, ids);
            }
            let of = self.sequences.at_mut(share.seat);
            of.append(share.position, share.tokens, tokens.is_some(), parents, &self.tables);
            of.finish_blocks(self.window, &mut self.tables);
        }
    }
}
