//! Writes: the slots that tokens go to, and what a write needs and changes.
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
//! A commit costs O(runs * layers).

use std::ops::Range;

use super::paged_planner::PagedPlanner;
use crate::error::Result;
use crate::paged::plan::{Append, CheckedWrite, CopyPlan, StagingContent, WritePlan, WriteTarget};
use crate::paged::table::Reservation;

impl PagedPlanner {
    /// Plans the copies that these writes need first. Refused if there are too few blocks for both.
    pub fn plan_copies(&self, targets: &[WriteTarget]) -> Result<CopyPlan> {
        CopyPlan::new(targets, self.state())
    }

    /// Checks an append: refuses what [`PagedPlanner::plan_append`] does, except for missing blocks.
    pub fn check_append(&self, append: &Append<'_>) -> Result<CheckedWrite> {
        CheckedWrite::of_append(append, self.state())
    }

    /// Checks tokens of one layer: refuses what [`PagedPlanner::plan_tokens`] does, except for missing blocks.
    pub fn check_tokens(&self, sequence: u64, layer: u32, position: u32, tokens: u32) -> Result<CheckedWrite> {
        self.check_layer(layer)?;
        CheckedWrite::of_layer(layer, &WriteTarget { sequence, position, tokens }, self.state())
    }

    /// Plans a write together with the copies it needs first. Refused if there are too few blocks for both.
    pub fn plan_write(&self, write: CheckedWrite) -> Result<(CopyPlan, WritePlan)> {
        self.check_revision(write.revision())?;
        WritePlan::with_copies(write, self.state())
    }

    /// Plans the write of tokens of one layer. Slots may be written again.
    pub fn plan_tokens(&self, sequence: u64, layer: u32, position: u32, tokens: u32) -> Result<WritePlan> {
        WritePlan::new(self.check_tokens(sequence, layer, position, tokens)?, self.state())
    }

    /// Plans an append of tokens of all layers to sequences.
    pub fn plan_append(&self, append: &Append<'_>) -> Result<WritePlan> {
        WritePlan::new(self.check_append(append)?, self.state())
    }

    /// Reserves the memory of a plan's commit. Refuses a stale plan: the cache has changed since it was made.
    pub fn reserve(&mut self, plan: &WritePlan) -> Result<()> {
        self.check_revision(plan.revision())?;
        self.reserve_write(plan, Reservation::default()).map(drop)
    }

    /// Reserves the memory of a plan and of the copies before it, and gives the number of staging pages that there
    /// must be. After that [`PagedPlanner::commit_copies_before`] and the commit are not refused.
    pub fn reserve_after(&mut self, copies: &CopyPlan, plan: &WritePlan) -> Result<u32> {
        self.check_revision(plan.revision())?;
        self.check_revision(copies.revision())?;
        let pool = self.tables.pool();
        let staged_layers = if pool.is_low_bit() { pool.num_layers() } else { 0 };
        let room = self.reserve_write(plan, copies.room() + copies.bare_room(staged_layers))?;
        Ok(self.tables.staging_pages(room))
    }

    /// Reserves the memory of a write and of what comes before it; gives the sum.
    fn reserve_write(&mut self, plan: &WritePlan, before: Reservation) -> Result<Reservation> {
        for (share, ..) in plan.shares().filter(|(share, ..)| share.drafted) {
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

    /// Gives the writers the blocks that were copied for them. Refuses a stale plan.
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
            pool.copy(copy.source, copy.target, copy.kept, staged);
        }
        // The originals are released only now, and may become free: those of each sequence from its end on.
        for of_sequence in plan.copies().chunk_by(|one, next| one.place.0 == next.place.0) {
            let copies = of_sequence.iter().map(|copy| (copy.place.1, copy.target));
            self.sequences.at_mut(of_sequence[0].place.0).replace(copies, &mut self.tables);
        }
        self.counters.copies += plan.copies().len() as u64;
        self.changed();
        Ok(())
    }

    /// Gives the writers their copies and makes the plan that was made with them write there. After
    /// [`PagedPlanner::reserve_after`] it refuses nothing but a stale plan.
    pub fn commit_copies_before(&mut self, copies: &CopyPlan, plan: &mut WritePlan) -> Result<()> {
        self.check_revision(plan.revision())?;
        self.commit_copies(copies)?;
        if copies.copies().is_empty() { Ok(()) } else { plan.follow_copies(self.state()) }
    }

    /// Notes a write in the bookkeeping: all of it, or nothing. `tokens` are the ids of the plan's tokens, if known.
    /// After [`PagedPlanner::reserve`] it refuses nothing but a stale plan.
    pub fn commit(&mut self, plan: &WritePlan, tokens: Option<&[u32]>) -> Result<()> {
        plan.check_tokens(tokens)?;
        self.reserve(plan)?;
        self.occupy(plan);
        self.mark(plan, plan.layers());
        self.advance(plan, tokens);
        self.changed();
        Ok(())
    }

    /// Takes a plan's blocks and staging pages. The blocks that it writes to lose their keys.
    pub(super) fn occupy(&mut self, plan: &WritePlan) {
        let size = self.block_size();
        for (share, runs, _) in plan.shares() {
            for run in runs {
                // Nobody else holds it, or it would have been copied; but no prompt may find it any more.
                self.tables.pool_mut().unname(run.block);
            }
            let of = self.sequences.at_mut(share.seat);
            let (length, kept) = (of.length(), of.length() % size);
            if share.end > length && kept > 0 {
                // Slots of the last block behind the sequence's tokens may have been cut off while others held the
                // block.
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

    /// Advances lengths, and gives up the staging pages of quantised pages.
    pub(super) fn advance(&mut self, plan: &WritePlan, tokens: Option<&[u32]>) {
        let pool = self.tables.pool_mut();
        plan.pages().iter().filter(|write| write.fills).for_each(|write| pool.unstage(write.page));
        for (share, runs, parents) in plan.shares() {
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
