//! Steps: slots for some tokens of all layers, written and read layer by layer, counted once for all of them.
//!
//! ```text
//! plan = planner.plan_append(sequences, offsets, Writer::Step)?
//! planner.open_step(&plan)?            blocks taken; lengths as before
//! planner.mark_layer(&plan, layer)?    for each layer, once its rows are there
//! planner.shorten_step(&mut plan, n)?  where only the first tokens of each sequence came: the rest is given back
//! planner.close_step(&plan, tokens)?   lengths moved on
//! planner.undo_step(&plan)?            or its sequences as they were
//! ```
//!
//! Opening costs O(blocks and runs), a layer O(runs), the end O(runs).

use std::ops::Range;

use super::sequence::Stepping;
use super::sequences::PagedPlanner;
use super::write_plan::{Before, Share, SlotRun, WritePlan};
use super::writing::check_tokens;
use crate::error::{Error, Result};

impl PagedPlanner {
    /// Takes the blocks of a step; its sequences refuse other changes until it ends.
    pub fn open_step(&mut self, plan: &WritePlan) -> Result<()> {
        self.reserve(plan)?;
        self.occupy(plan);
        let mut parents = plan.parents.as_deref().unwrap_or(&[]);
        for share in &plan.shares {
            let of = self.at_mut(share.slot);
            let (own, rest) = parents.split_at(parents.len().min(share.tokens as usize));
            of.step_parents.clear();
            of.step_parents.extend_from_slice(own);
            of.stepping = Some(Stepping { tokens: share.tokens, revision: plan.revision });
            parents = rest;
        }
        self.changed();
        Ok(())
    }

    /// Refuses a step that has ended, or one of whose sequences was dropped.
    pub fn check_step(&self, plan: &WritePlan) -> Result<()> {
        match plan.shares.iter().find(|share| !self.is_stepping(plan, share)) {
            Some(share) => Err(Error::StaleStep { sequence: share.sequence }),
            None => Ok(()),
        }
    }

    /// Notes that a layer of an open step was written.
    pub fn mark_layer(&mut self, plan: &WritePlan, layer: u32) -> Result<()> {
        self.check_layer(layer)?;
        self.mark_layers(plan, layer..layer + 1)
    }

    /// The same for several layers.
    pub fn mark_layers(&mut self, plan: &WritePlan, layers: Range<u32>) -> Result<()> {
        if layers.start > layers.end || layers.end > self.store.num_layers {
            let expected = format!("a range in 0..{}", self.store.num_layers);
            return Err(Error::argument("layers", format!("{layers:?}"), expected));
        }
        self.reserve_marks(plan)?;
        self.mark(plan, layers);
        Ok(())
    }

    /// Takes the memory that [`PagedPlanner::mark_layer`] needs, or refuses what it would refuse.
    pub fn reserve_marks(&mut self, plan: &WritePlan) -> Result<()> {
        self.check_step(plan)?;
        self.store.marks.reserve(0, plan.runs.len())
    }

    /// Keeps the first `tokens` tokens of each sequence of an open step, and gives the other slots back: for a step that was opened
    /// for as many as may come. Pages that are staged cannot be cut, nor trees.
    pub fn shorten_step(&mut self, plan: &mut WritePlan, tokens: u32) -> Result<()> {
        self.check_step(plan)?;
        if self.low_bit || plan.parents.is_some() {
            return Err(Error::argument("plan", "of staged pages or of trees", "a step of chains in pages of rows"));
        }
        let most = plan.shares.iter().map(|share| share.tokens).min().unwrap_or(0);
        if tokens > most {
            return Err(Error::argument("tokens", tokens, format!("at most {most}, as the step has of each sequence")));
        }
        self.chunks.reserve(plan.shares.len(), 0)?;
        self.store.marks.reserve(0, plan.runs.len())?;
        let (mut first, mut runs) = (0, 0);
        (plan.tokens, plan.new_blocks) = (0, 0);
        for share in &mut plan.shares {
            let own = first as usize..share.runs_end as usize;
            first = share.runs_end;
            let mut left = tokens;
            for at in own {
                let run = plan.runs[at];
                let kept = run.len.min(left);
                if kept < run.len {
                    self.forget_written(&SlotRun { slot: run.slot + kept, len: run.len - kept, ..run });
                }
                if kept > 0 {
                    plan.runs[runs] = SlotRun { len: kept, token: plan.tokens + tokens - left, ..run };
                    runs += 1;
                }
                left -= kept;
            }
            self.shorten_share(share, tokens);
            share.runs_end = runs as u32;
            plan.tokens += tokens;
            plan.new_blocks += share.new_blocks;
        }
        plan.runs.truncate(runs);
        self.changed();
        Ok(())
    }

    fn shorten_share(&mut self, share: &mut Share, tokens: u32) {
        let block_size = self.store.block_size;
        let of = self.sequences[share.slot as usize].as_mut().expect("a sequence of an open step");
        let before = of.content.table.len() - share.new_blocks;
        share.tokens = tokens;
        share.end = if tokens == 0 { 0 } else { share.position + tokens };
        share.new_blocks = share.end.div_ceil(block_size).saturating_sub(before);
        self.chunks.truncate(&mut of.content.table, before + share.new_blocks, self.store.chain());
        of.stepping = of.stepping.map(|step| Stepping { tokens, ..step });
        of.epoch += 1;
    }

    /// Nobody reads these slots; what may lie there is zeroed before somebody does.
    fn forget_written(&mut self, run: &SlotRun) {
        for layer in 0..self.store.num_layers {
            self.store.marks.unset(run.block, layer, run.slot..run.slot + run.len);
        }
        self.store.dirty.insert_block(run.block);
    }

    /// Ends a step whose layers are all written: its tokens count now. `tokens` are their ids, where they are known.
    pub fn close_step(&mut self, plan: &WritePlan, tokens: Option<&[u32]>) -> Result<()> {
        self.reserve_close(plan, tokens)?;
        for share in &plan.shares {
            self.at_mut(share.slot).stepping = None;
        }
        self.advance(plan, tokens);
        self.changed();
        Ok(())
    }

    /// Takes the memory that [`PagedPlanner::close_step`] needs, or refuses what it would refuse.
    pub fn reserve_close(&mut self, plan: &WritePlan, tokens: Option<&[u32]>) -> Result<()> {
        check_tokens(plan, tokens)?;
        self.check_step(plan)?;
        self.chunks.reserve(plan.shares.len(), 0)
    }

    /// Ends a step: its sequences are what they were. Those that were dropped since are none of its business.
    ///
    /// What was evicted for its blocks is gone. So is the key of a block that it goes on in where none was left for a copy: no prompt
    /// finds what lay behind the sequence's end there. Until its first write it could have stayed, but then a prompt that found the
    /// block would hold it, and see what is written.
    pub fn undo_step(&mut self, plan: &WritePlan) -> Result<()> {
        self.chunks.reserve(plan.shares.len(), 0)?;
        self.store.marks.reserve(0, plan.runs.len())?;
        let mut writes = &plan.pages[..];
        for (share, runs) in plan.shares() {
            let own = writes.iter().position(|write| write.run >= share.runs_end).unwrap_or(writes.len());
            let (of_share, rest) = writes.split_at(own);
            writes = rest;
            if !self.is_stepping(plan, share) {
                continue;
            }
            runs.iter().for_each(|run| self.forget_written(run));
            for write in of_share.iter().filter(|write| write.before != Before::Rows) {
                self.store.staging.give_back(write.page);
            }
            let of = self.sequences[share.slot as usize].as_mut().expect("a sequence of an open step");
            let blocks = of.content.table.len() - share.new_blocks;
            self.chunks.truncate(&mut of.content.table, blocks, self.store.chain());
            of.stepping = None;
            of.epoch += 1;
        }
        self.changed();
        Ok(())
    }

    fn is_stepping(&self, plan: &WritePlan, share: &Share) -> bool {
        let of = self.sequences.get(share.slot as usize).and_then(Option::as_ref);
        of.is_some_and(|of| of.id == share.sequence && of.stepping.is_some_and(|step| step.revision == plan.revision))
    }
}
