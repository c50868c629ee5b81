//! Steps: tokens of all layers that get their slots at once, are written and read layer by layer, and count in all layers at once.
//!
//! ```text
//! plan = planner.plan_append(sequences, offsets, Writer::Step)?
//! planner.open_step(&plan)?            blocks taken; lengths as before
//! planner.lend_step(&plan)?            where its layers are written elsewhere
//! planner.mark_layer(&plan, layer)?    for each layer, once its rows are there
//! planner.shorten_step(&mut plan, n)?  where only the first tokens of each sequence came: the rest is given back
//! planner.close_step(&plan, tokens)?   lengths moved on
//! planner.undo_step(&plan)?            or its sequences as they were
//! ```
//!
//! Opening costs O(blocks and runs), a layer and the end O(runs).

use std::ops::Range;

use super::paged_planner::PagedPlanner;
use crate::error::{Error, Result};
use crate::paged::plan::{Share, StagingContent, WritePlan};
use crate::paged::sequence::OpenStep;
use crate::paged::table::Reservation;

impl PagedPlanner {
    /// Takes the blocks of a step. Its sequences refuse other changes until it ends.
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

    /// Refuses a step that has ended, or that contains a dropped sequence.
    pub fn check_step(&self, plan: &WritePlan) -> Result<()> {
        match plan.shares().find(|(share, ..)| !self.is_in_step(plan, share)) {
            Some((share, ..)) => Err(Error::StaleStep { sequence: share.sequence }),
            None => Ok(()),
        }
    }

    /// Notes that the slots of an open step are written elsewhere: until they are marked, they may hold anything.
    pub fn lend_step(&mut self, plan: &WritePlan) -> Result<()> {
        self.check_step(plan)?;
        plan.runs().iter().for_each(|run| self.tables.pool_mut().soil(run.block));
        Ok(())
    }

    /// Notes that a layer of an open step was written.
    pub fn mark_layer(&mut self, plan: &WritePlan, layer: u32) -> Result<()> {
        self.check_layer(layer)?;
        self.mark_layers(plan, layer..layer + 1)
    }

    /// Notes that several layers of an open step were written.
    pub fn mark_layers(&mut self, plan: &WritePlan, layers: Range<u32>) -> Result<()> {
        if layers.start > layers.end || layers.end > self.num_layers() {
            let expected = format!("a range in 0..{}", self.num_layers());
            return Err(Error::argument("layers", format!("{layers:?}"), expected));
        }
        self.reserve_marks(plan)?;
        self.mark(plan, layers);
        Ok(())
    }

    /// Reserves the memory of [`PagedPlanner::mark_layer`], or refuses what it would refuse.
    pub fn reserve_marks(&mut self, plan: &WritePlan) -> Result<()> {
        self.check_step(plan)?;
        self.tables.reserve(Reservation { marks: plan.runs().len(), ..Reservation::default() })
    }

    /// Shortens an open step to the first `tokens` tokens of each sequence and gives the other slots back: for a step
    /// that was opened for the most tokens that may come. Refused for staged pages and trees.
    pub fn shorten_step(&mut self, plan: &mut WritePlan, tokens: u32) -> Result<()> {
        self.check_step(plan)?;
        if self.tables.pool().is_low_bit() || plan.has_parents() {
            return Err(Error::argument("plan", "of staged pages or of trees", "a step of chains in pages of rows"));
        }
        let most = plan.shares().map(|(share, ..)| share.tokens).min().unwrap_or(0);
        if tokens > most {
            return Err(Error::argument("tokens", tokens, format!("at most {most}, as the step has of each sequence")));
        }
        self.tables.reserve(undo_room(plan))?;
        let size = self.block_size();
        for (share, ..) in plan.shares() {
            let blocks = share.new_blocks - share.shortened(tokens, size).new_blocks;
            self.sequences.at_mut(share.seat).shorten_step(tokens, blocks, &mut self.tables);
        }
        plan.shorten(tokens, size, |block, slots| self.tables.pool_mut().unwrite(block, slots));
        self.changed();
        Ok(())
    }

    /// Ends a step whose layers are all written: its tokens count now. `tokens` are their ids, if known.
    pub fn close_step(&mut self, plan: &WritePlan, tokens: Option<&[u32]>) -> Result<()> {
        self.reserve_close(plan, tokens)?;
        plan.shares().for_each(|(share, ..)| self.sequences.at_mut(share.seat).close_step());
        self.advance(plan, tokens);
        self.changed();
        Ok(())
    }

    /// Reserves the memory of [`PagedPlanner::close_step`], or refuses what it would refuse.
    pub fn reserve_close(&mut self, plan: &WritePlan, tokens: Option<&[u32]>) -> Result<()> {
        plan.check_tokens(tokens)?;
        self.check_step(plan)?;
        self.tables.reserve(Reservation { tables: plan.num_shares(), ..Reservation::default() })
    }

    /// Undoes a step: its sequences are what they were before. Dropped ones are passed over. What was evicted for its blocks stays gone.
    /// If there was no block for a copy, so does the key of the block in which a sequence goes on: a prompt that found that block would
    /// hold it and see what is written.
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
            let pool = self.tables.pool_mut();
            // Nobody reads these slots; they are zeroed before somebody does.
            runs.iter().for_each(|run| pool.unwrite(run.block, run.slot..run.slot + run.len));
            of_share
                .iter()
                .filter(|write| write.before != StagingContent::Own)
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

/// The reservation for giving slots of an open step back.
fn undo_room(plan: &WritePlan) -> Reservation {
    Reservation { tables: plan.num_shares(), marks: plan.runs().len(), ..Reservation::default() }
}
