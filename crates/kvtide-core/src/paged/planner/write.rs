//! Writes: the slots of new tokens, and the needs and changes of a write.
//!
//! ```text
//! write = planner.check_append(&append)?               on error, nothing has changed
//! (copies, plan) = planner.plan_write(write)?          as if there were no copies
//! pages = planner.reserve_after(&copies, &plan)?       memory of both, in the bookkeeping
//! executor allocates that many staging pages, then copies the blocks
//! planner.commit_copies_before(&copies, &mut plan)?    the plan writes to the copies from here on, and can no longer fail
//! executor moves the bytes
//! planner.commit(&plan, tokens)?                       takes blocks, marks slots, advances lengths, gives blocks keys
//! ```
//!
//! A commit costs O(runs * layers).

use std::ops::Range;

use super::paged_planner::PagedPlanner;
use crate::error::Result;
use crate::paged::plan::{Append, CheckedWrite, CopyPlan, StagingContent, WritePlan, WriteTarget};
use crate::paged::table::Reservation;

impl PagedPlanner {
    /// Plans the copies that these writes need before them. Returns an error if there are too few blocks for both.
    pub fn plan_copies(&self, targets: &[WriteTarget]) -> Result<CopyPlan> {
        CopyPlan::new(targets, self.state())
    }

    /// Checks an append: returns the errors of [`PagedPlanner::plan_append`], except for missing blocks.
    pub fn check_append(&self, append: &Append<'_>) -> Result<CheckedWrite> {
        CheckedWrite::of_append(append, self.state())
    }

    /// Checks tokens of one layer: returns the errors of [`PagedPlanner::plan_tokens`], except for missing blocks.
    pub fn check_tokens(&self, sequence: u64, layer: u32, position: u32, tokens: u32) -> Result<CheckedWrite> {
        self.check_layer(layer)?;
        CheckedWrite::of_layer(layer, &WriteTarget { sequence, position, tokens }, self.state())
    }

    /// Plans a write together with the copies it needs before it. Returns an error if there are too few blocks for
    /// both.
    pub fn plan_write(&self, write: CheckedWrite) -> Result<(CopyPlan, WritePlan)> {
        self.check_revision(write.revision())?;
        WritePlan::with_copies(write, self.state())
    }

    /// Plans a write of tokens to one layer. Slots may be written again.
    pub fn plan_tokens(&self, sequence: u64, layer: u32, position: u32, tokens: u32) -> Result<WritePlan> {
        WritePlan::new(self.check_tokens(sequence, layer, position, tokens)?, self.state())
    }

    /// Plans an append of tokens to all layers of sequences.
    pub fn plan_append(&self, append: &Append<'_>) -> Result<WritePlan> {
        WritePlan::new(self.check_append(append)?, self.state())
    }

    /// Reserves the memory of a plan's commit. Returns an error if the plan is stale: the cache has changed since it
    /// was made.
    pub fn reserve(&mut self, plan: &WritePlan) -> Result<()> {
        self.check_revision(plan.revision())?;
        self.reserve_write(plan, Reservation::default()).map(drop)
    }

    /// Reserves the memory of a plan and of the copies before it, and returns the number of staging pages that must
    /// exist. After that, [`PagedPlanner::commit_copies_before`] and the commit cannot fail.
    pub fn reserve_after(&mut self, copies: &CopyPlan, plan: &WritePlan) -> Result<u32> {
        self.check_revision(plan.revision())?;
        self.check_revision(copies.revision())?;
        let pool = self.tables.pool();
        let staged_layers = if pool.is_low_bit() { pool.num_layers() } else { 0 };
        let room = self.reserve_write(plan, copies.room() + copies.bare_room(staged_layers))?;
        Ok(self.tables.staging_pages(room))
    }

    /// Reserves the memory of a write and of the copies before it; returns the sum.
    fn reserve_write(&mut self, plan: &WritePlan, before: Reservation) -> Result<Reservation> {
        if self.keeps_states {
            plan.shares().try_for_each(|(share, ..)| self.sequences.at_mut(share.seat).reserve_states(share))?;
        }
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

    /// Gives the writers the copies of their blocks. Returns an error if the plan is stale.
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

    /// Gives the writers their copies, and points the plan that was made with them at these copies. After
    /// [`PagedPlanner::reserve_after`], the only possible error is a stale plan.
    pub fn commit_copies_before(&mut self, copies: &CopyPlan, plan: &mut WritePlan) -> Result<()> {
        self.check_revision(plan.revision())?;
        self.commit_copies(copies)?;
        if copies.copies().is_empty() { Ok(()) } else { plan.follow_copies(self.state()) }
    }

    /// Commits a write in the bookkeeping, completely or not at all. `tokens` are the ids of the plan's tokens, if
    /// known. After [`PagedPlanner::reserve`], the only possible error is a stale plan.
    pub fn commit(&mut self, plan: &WritePlan, tokens: Option<&[u32]>) -> Result<()> {
        plan.check_tokens(tokens)?;
        self.reserve(plan)?;
        self.occupy(plan);
        self.mark(plan, plan.layers());
        self.advance(plan, tokens);
        self.changed();
        Ok(())
    }

    /// Takes a plan's blocks and staging pages. The blocks that it writes lose their keys.
    pub(super) fn occupy(&mut self, plan: &WritePlan) {
        if self.keeps_states {
            return self.occupy_slots(plan);
        }
        let size = self.block_size();
        for (share, runs, _) in plan.shares() {
            for run in runs {
                // No other sequence holds the block, or it would have been copied; but prompts must not find it any
                // more.
                self.tables.pool_mut().unname(run.block);
            }
            let of = self.sequences.at_mut(share.seat);
            let (length, kept) = (of.length(), of.length() % size);
            if share.end > length && kept > 0 {
                // If others held the last block, its slots behind the sequence's tokens may have been cut off and still
                // be marked.
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

    /// Marks the slots of a plan in some layers, and the staged pages that were quantised.
    pub(super) fn mark(&mut self, plan: &WritePlan, layers: Range<u32>) {
        for run in plan.runs() {
            self.tables.pool_mut().mark(run.block, layers.clone(), run.slot..run.slot + run.len, run.staged);
        }
        for write in plan.pages().iter().filter(|write| layers.contains(&write.page.layer)) {
            self.tables.pool_mut().set_sealed(write.page, write.completes);
        }
    }

    /// Advances lengths, and releases the staging pages of quantised pages.
    pub(super) fn advance(&mut self, plan: &WritePlan, tokens: Option<&[u32]>) {
        if self.keeps_states {
            return self.advance_states(plan, tokens);
        }
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
