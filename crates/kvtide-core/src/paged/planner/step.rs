//! Steps: tokens of several sequences that get slots in all layers at once, are written and read layer by layer, and
//! count in all layers at once.
//!
//! ```text
//! plan = planner.plan_append(sequences, offsets, Writer::Step)?
//! planner.open_step(&plan)?            takes blocks; lengths stay
//! planner.lend_step(&plan)?            if another thread writes its layers
//! planner.mark_layer(&plan, layer)?    for each layer, once its rows are written
//! planner.plan_close(&plan)?           plans copies of blocks that forks hold by now
//! planner.close_step(&plan, tokens)?   advances lengths
//! planner.undo_step(&plan)?            or restores its sequences
//! ```
//!
//! A fork or a snapshot of a sequence in a step has the content from before the step. It shares the block in which the
//! step continues, up to the step's first slot:
//!
//! ```text
//! table of the sequence   [ block 2 ][ block 0: 3 tokens | step ][ block 5: step ]
//! table of the fork       [ block 2 ][ block 0: 3 tokens ]
//! ```
//!
//! The step continues to write behind the slots that the fork sees, and the fork copies the block before it writes
//! there, as always. Pages that others hold are not quantised: if the step fills such a page, its sequence gets a copy
//! of the block first; if no block is available, the page stays in floats.
//!
//! Opening costs O(blocks and runs); a layer and the end cost O(runs).

use super::paged_planner::PagedPlanner;
use crate::error::{Error, Result, reserve};
use crate::paged::plan::{CopyPlan, Share, StagingContent, WritePlan, WriteTarget};
use crate::paged::sequence::OpenStep;
use crate::paged::table::Reservation;

impl PagedPlanner {
    /// Takes the blocks of a step. Other changes of its sequences return an error until it ends.
    pub fn open_step(&mut self, plan: &WritePlan) -> Result<()> {
        self.reserve(plan)?;
        self.occupy(plan);
        for (share, _, parents) in plan.shares() {
            let step = OpenStep { tokens: share.tokens, revision: plan.revision() };
            self.sequences.at_mut(share.seat).open_step(step, parents.unwrap_or(&[]));
        }
        self.changed();
        Ok(())
    }

    /// Returns an error if the step has ended, or if one of its sequences was dropped.
    pub fn check_step(&self, plan: &WritePlan) -> Result<()> {
        match plan.shares().find(|(share, ..)| !self.is_in_step(plan, share)) {
            Some((share, ..)) => Err(Error::StaleStep { sequence: share.sequence }),
            None => Ok(()),
        }
    }

    /// Records that another thread writes the slots of an open step. Until they are marked, their content is undefined.
    pub fn lend_step(&mut self, plan: &WritePlan) -> Result<()> {
        self.check_step(plan)?;
        plan.runs().iter().for_each(|run| self.tables.pool_mut().soil(run.block));
        Ok(())
    }

    /// Records that a layer of an open step was written.
    pub fn mark_layer(&mut self, plan: &WritePlan, layer: u32) -> Result<()> {
        self.check_layer(layer)?;
        self.reserve_marks(plan)?;
        self.mark(plan, layer..layer + 1);
        Ok(())
    }

    /// Reserves the memory of [`PagedPlanner::mark_layer`], or returns the error that it would return.
    pub fn reserve_marks(&mut self, plan: &WritePlan) -> Result<()> {
        self.check_step(plan)?;
        self.tables.reserve(Reservation { marks: plan.runs().len(), ..Reservation::default() })
    }

    /// Plans the copies before the end of a step: of blocks with pages that the step fills and that others have come to
    /// hold since it was opened, as far as blocks are available. Most steps need no copies.
    pub fn plan_close(&self, plan: &WritePlan) -> Result<CopyPlan> {
        self.check_step(plan)?;
        let (size, state) = (self.block_size(), self.state());
        let mut targets = Vec::new();
        if self.tables.pool().is_low_bit() {
            reserve(&mut targets, plan.num_shares(), "sequences and blocks of a call")?;
            let shared = plan.shares().filter(|(share, runs, _)| plan.fills_shared(share, runs, state));
            targets.extend(shared.take(self.free_count() as usize).map(|(share, ..)| {
                let &Share { sequence, position, .. } = share;
                WriteTarget { sequence, position, tokens: size - position % size }
            }));
        }
        self.plan_copies(&targets)
    }

    /// Reserves the memory of the copies before the end of a step, and of the end. Returns the number of staging pages
    /// that must exist.
    pub fn reserve_copies(&mut self, copies: &CopyPlan, plan: &WritePlan) -> Result<u32> {
        self.check_revision(copies.revision())?;
        let room = copies.room() + close_room(plan);
        self.tables.reserve(room)?;
        Ok(self.tables.staging_pages(room))
    }

    /// Gives the sequences of a step the copies that its end needs, and points its plan at them. Pages that others
    /// still hold are not quantised: they stay in floats.
    pub fn commit_copies_before_close(&mut self, copies: &CopyPlan, plan: &mut WritePlan) -> Result<()> {
        self.check_step(plan)?;
        self.commit_copies(copies)?;
        plan.follow_blocks(self.state())
    }

    /// True if the end of a step needs [`PagedPlanner::plan_close`]: others hold a page that it fills.
    #[must_use]
    pub fn fills_shared(&self, plan: &WritePlan) -> bool {
        let is_low_bit = self.tables.pool().is_low_bit();
        is_low_bit && plan.shares().any(|(share, runs, _)| plan.fills_shared(share, runs, self.state()))
    }

    /// Ends a step whose layers are all written: its tokens count from now on. `tokens` are their ids, if known.
    pub fn close_step(&mut self, plan: &WritePlan, tokens: Option<&[u32]>) -> Result<()> {
        self.reserve_close(plan, tokens)?;
        plan.shares().for_each(|(share, ..)| self.sequences.at_mut(share.seat).close_step());
        self.advance(plan, tokens);
        self.changed();
        Ok(())
    }

    /// Reserves the memory of [`PagedPlanner::close_step`], or returns the error that it would return.
    pub fn reserve_close(&mut self, plan: &WritePlan, tokens: Option<&[u32]>) -> Result<()> {
        plan.check_tokens(tokens)?;
        self.check_step(plan)?;
        if self.keeps_states {
            plan.shares().try_for_each(|(share, ..)| self.sequences.at_mut(share.seat).reserve_states(share))?;
        }
        self.tables.reserve(close_room(plan))
    }

    /// Undoes a step and restores its sequences. Dropped sequences are skipped. Blocks that were evicted for the step
    /// stay evicted. If no block was available for a copy, the block in which a sequence continues loses its key
    /// permanently: a prompt that found that block would hold it and see later writes.
    pub fn undo_step(&mut self, plan: &WritePlan) -> Result<()> {
        self.tables.reserve(undo_room(plan))?;
        let mut writes = plan.pages();
        for (share, runs, _) in plan.shares() {
            let own = writes.iter().position(|write| write.run >= share.runs_end).unwrap_or(writes.len());
            let (of_share, rest) = writes.split_at(own);
            writes = rest;
            if !self.is_in_step(plan, share) {
                continue;
            }
            if self.keeps_states {
                self.sequences.at_mut(share.seat).drop_new_states(&mut self.tables);
                self.sequences.at_mut(share.seat).close_step();
                continue;
            }
            let pool = self.tables.pool_mut();
            // These slots are not read before they are zeroed.
            runs.iter().for_each(|run| pool.unwrite(run.block, run.slot..run.slot + run.len));
            of_share
                .iter()
                .filter(|write| match write.before {
                    StagingContent::Own => false,
                    // Rows from before the step were quantised again together with those of the step, so their exact
                    // values are only in floats.
                    StagingContent::Sealed => !write.completes,
                    StagingContent::Zeros | StagingContent::Other => true,
                })
                .for_each(|write| pool.unstage(write.page));
            self.sequences.at_mut(share.seat).undo_step(share.new_blocks, &mut self.tables);
        }
        self.changed();
        Ok(())
    }

    fn is_in_step(&self, plan: &WritePlan, share: &Share) -> bool {
        let of = self.sequences.get(share.seat);
        of.is_some_and(|of| of.id() == share.sequence && of.is_in_step(plan.revision()))
    }
}

/// The reservation for the end of a step.
fn close_room(plan: &WritePlan) -> Reservation {
    Reservation { tables: plan.num_shares(), ..Reservation::default() }
}

/// The reservation for releasing slots of an open step.
fn undo_room(plan: &WritePlan) -> Reservation {
    Reservation { tables: plan.num_shares(), marks: plan.runs().len(), ..Reservation::default() }
}
