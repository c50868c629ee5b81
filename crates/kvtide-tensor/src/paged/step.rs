//! A group's part in a step: some tokens of its layers, written and attended to layer by layer, and counted once for all
//! layers.
//!
//! ```text
//! let planned = group.plan_step(..)?             its needs are known, and its memory is reserved
//! let mut step = group.open_step(planned, ..)?   slots of all layers are taken
//! group.write_layer(&mut step, 0, [k, v])?       the queries of layer 0 attend to group.step_pages(&step, 0)?
//! group.commit_step(&mut step, ids)?             lengths advance; a step that is dropped leaves no trace
//! ```
//!
//! The start costs O(blocks), a layer O(bytes of its tokens), the end O(runs).

use std::sync::Arc;

use kvtide_core::paged::{Append, CopyPlan, StepTableRows, StepTables, WritePlan, Writer};

use super::dropped::{Dropped, DroppedList};
use super::group::PageGroup;
use super::page_rows::PageRows;
use super::rows::TokenRows;
use super::scratch::Scratch;
use super::slabs::Slabs;
use super::write::{PlannedWrite, check_count};
use crate::base::error::{Error, Result};
use crate::tensor::source::Source;

/// An open step of a [`PageGroup`]. If it is dropped before it was committed, the cache's next call rolls it back.
#[derive(Debug)]
#[must_use = "a step that is dropped is rolled back"]
pub(crate) struct GroupStep {
    /// `None` once it has ended.
    pub(super) plan: Option<Arc<WritePlan>>,
    pub(super) sequences: Box<[u64]>,
    /// For each layer, or in a group of states for each sequence with tokens, true if it was written.
    pub(super) written: Box<[bool]>,
    /// In a group of states, for each sequence with tokens, true if all of its slots were written, also those after single
    /// tokens of a draft.
    pub(super) computed: Box<[bool]>,
    dropped: DroppedList,
}

/// The tokens of a step.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepTokens<'a> {
    /// The sequences, each once.
    pub sequences: &'a [u64],
    /// Sequence i gets the tokens `offsets[i]..offsets[i + 1]`; one token each without offsets.
    pub offsets: Option<&'a [u32]>,
    /// For each token the index of the token of its sequence's transaction that it follows, or -1 for the last token before
    /// the transaction; by default a chain.
    pub parents: Option<&'a [i32]>,
}

impl StepTokens<'_> {
    /// The number of tokens of all sequences.
    pub(crate) fn count(&self) -> u32 {
        self.offsets.map_or(self.sequences.len() as u32, |offsets| offsets.last().copied().unwrap_or(0))
    }
}

impl GroupStep {
    /// The sequences that get tokens.
    #[must_use]
    pub fn sequences(&self) -> &[u64] {
        &self.sequences
    }

    /// The number of tokens of all sequences.
    #[must_use]
    pub fn tokens(&self) -> u32 {
        self.plan.as_ref().map_or(0, |plan| plan.tokens())
    }

    /// The index of the first token of each sequence, followed by the number of tokens.
    pub(crate) fn offsets(&self) -> Result<Vec<i32>> {
        Ok(self.plan()?.offsets().map(|offset| offset as i32).collect())
    }

    /// True if it was neither committed nor rolled back.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.plan.is_some()
    }

    /// True if a layer was written.
    pub fn has_written(&self, layer: u32) -> bool {
        self.written[layer as usize]
    }

    /// True if all layers were written, or the states of all sequences with tokens.
    pub fn has_written_all(&self) -> bool {
        !self.written.contains(&false)
    }

    /// Its plan, while it is open.
    pub(super) fn plan(&self) -> Result<&Arc<WritePlan>> {
        self.plan.as_ref().ok_or_else(|| kvtide_core::Error::StepClosed.into())
    }
}

impl Drop for GroupStep {
    fn drop(&mut self) {
        if let Some(plan) = self.plan.take() {
            self.dropped.add(Dropped::Step(plan));
        }
    }
}

impl PageGroup {
    /// Plans a step and reserves its memory: opening it can then no longer fail for lack of memory.
    pub(crate) fn plan_step(&mut self, tokens: StepTokens<'_>) -> Result<PlannedWrite> {
        self.change_pages()?;
        let StepTokens { sequences, offsets, parents } = tokens;
        let append = Append { sequences, offsets, parents, writer: Writer::Step };
        let mut write = self.planner.check_append(&append)?;
        // The groups of states are the last ones that plan a step: the others do not refuse it.
        if self.planner.make_room_for_states(write.new_blocks()) {
            write = self.planner.check_append(&append)?;
        }
        self.plan_write(write)
    }

    /// Opens a step as planned.
    pub(crate) fn open_step(&mut self, mut planned: PlannedWrite, tokens: StepTokens<'_>) -> Result<GroupStep> {
        self.poisoned = true;
        self.prepare_write(&mut planned)?;
        self.planner.open_step(&planned.plan)?;
        self.poisoned = false;
        let (written, computed) = match self.keeps_states() {
            true => {
                let count = planned.plan.runs_of_sequences().filter(|runs| !runs.is_empty()).count();
                (count, count)
            }
            false => (self.planner.num_layers() as usize, 0),
        };
        Ok(GroupStep {
            plan: Some(Arc::new(planned.plan)),
            sequences: tokens.sequences.into(),
            written: vec![false; written].into(),
            computed: vec![false; computed].into(),
            dropped: self.dropped.clone(),
        })
    }

    /// Fails if the tables are too small for a planned step.
    pub(crate) fn prepare_tables(
        &self,
        planned: &PlannedWrite,
        rows: &mut StepTableRows,
        tables: &StepTables<'_>,
    ) -> Result<()> {
        Ok(rows.prepare(&self.planner, &planned.plan, tables)?)
    }

    /// Fills arrays of the caller with the slots of the step's tokens and the blocks of its sequences. `rows` are kept
    /// between steps: unchanged rows are not written again.
    pub fn fill_tables(&self, step: &GroupStep, rows: &mut StepTableRows, tables: StepTables<'_>) -> Result<()> {
        self.check()?;
        self.check_step(step)?;
        Ok(rows.fill(&self.planner, step.plan()?, tables)?)
    }

    /// The position of each token of an open step.
    pub fn step_positions(&self, step: &GroupStep) -> Result<Vec<i32>> {
        self.check_step(step)?;
        Ok(self.planner.step_positions(step.plan()?)?)
    }

    /// Writes the tokens of a layer: K and V `[kvHeads, tokens, headDim]`, the tokens of all sequences one after the other.
    /// A layer may be written again while the step is open.
    pub fn write_layer(&mut self, step: &mut GroupStep, layer: u32, sources: [Source<'_>; 2]) -> Result<()> {
        self.change_pages()?;
        self.check_step(step)?;
        let plan = step.plan()?;
        let (rows, scratch) = self.slabs.step_rows(plan, sources)?;
        self.planner.reserve_marks(plan)?;
        // New rows of floats are not visible until the layer is marked: if writing them fails, the step can still be rolled
        // back.
        self.poisoned = self.shape().pages.is_low_bit() || step.has_written(layer);
        self.slabs.write(plan, layer..layer + 1, &rows, &scratch)?;
        self.poisoned = true;
        self.planner.mark_layer(plan, layer)?;
        self.poisoned = false;
        step.written[layer as usize] = true;
        Ok(())
    }

    /// Checks everything that [`PageGroup::write_layer`] checks about the tokens of a layer, in a step of `tokens` tokens.
    pub(crate) fn check_rows(&self, sources: [&Source<'_>; 2], tokens: u32) -> Result<()> {
        check_count(self.tokens_of(sources)?, tokens, AS_THE_STEP)
    }

    /// The pages of a layer that the step's queries attend to, including its own tokens; fails until they are written.
    pub fn step_pages(&mut self, step: &GroupStep, layer: u32) -> Result<PageRows<'_>> {
        self.check_written(step, layer)?;
        self.pages(layer, &step.sequences)
    }

    /// Commits a step that was checked: its tokens count in all layers, and prompts can hit full blocks of those with known
    /// `ids`.
    pub fn commit_step(&mut self, step: &mut GroupStep, ids: Option<&[u32]>) -> Result<()> {
        if self.keeps_states() {
            self.mark_states(step)?;
        }
        self.planner.reserve_close(step.plan()?, ids)?;
        if self.planner.fills_shared(step.plan()?) {
            self.copy_to_close(step)?;
        }
        self.planner.close_step(step.plan()?, ids)?;
        if self.keeps_states() {
            self.forget_drafted_states(step)?;
        }
        self.poisoned = false;
        step.plan = None;
        Ok(())
    }

    /// Gives the sequences of a step their own copies of pages that it fills and that forks hold by now. If there is no free
    /// block or no staging memory, or if another thread computes a step, the page stays in floats.
    fn copy_to_close(&mut self, step: &mut GroupStep) -> Result<()> {
        let copies = self.copies_to_close(step.plan()?)?;
        let scratch = Scratch::of(self.shape(), step.plan()?, true)?;
        self.poisoned |= !copies.copies().is_empty();
        self.copy_blocks(&copies)?;
        let plan = Arc::make_mut(step.plan.as_mut().expect("a step that is open"));
        self.planner.commit_copies_before_close(&copies, plan)?;
        if copies.copies().is_empty() {
            return Ok(());
        }
        let seals: Vec<_> = plan.completed(plan.layers(), self.shape().block_size()).collect();
        self.slabs.seal(&seals, &scratch)
    }

    fn copies_to_close(&mut self, plan: &WritePlan) -> Result<CopyPlan> {
        if self.check_pages().is_err() {
            return Ok(self.planner.plan_copies(&[])?);
        }
        let copies = self.planner.plan_close(plan)?;
        let room = self.planner.reserve_copies(&copies, plan)?;
        self.hand_down_evicted();
        match self.reserve_staging(room) {
            Ok(()) => Ok(copies),
            Err(_) => Ok(self.planner.plan_copies(&[])?),
        }
    }

    /// Rolls a step back: its sequences are as if it had never been.
    pub fn undo_step(&mut self, step: &mut GroupStep) -> Result<()> {
        self.change()?;
        if let Some(plan) = &step.plan {
            self.planner.undo_step(plan)?;
            step.plan = None;
        }
        Ok(())
    }

    /// Fails for a layer that the step has not written, because its queries would attend to missing tokens.
    pub fn check_written(&self, step: &GroupStep, layer: u32) -> Result<()> {
        self.check_step(step)?;
        if step.has_written(layer) { Ok(()) } else { Err(not_written()) }
    }

    /// Fails if the step has ended, or one of its sequences was dropped.
    pub fn check_step(&self, step: &GroupStep) -> Result<()> {
        Ok(self.planner.check_step(step.plan()?)?)
    }
}

impl Slabs {
    /// The rows of a layer of a step, and scratch memory to quantise them.
    pub(super) fn step_rows<'a>(
        &self,
        plan: &WritePlan,
        sources: [Source<'a>; 2],
    ) -> Result<([TokenRows<'a>; 2], Scratch)> {
        let rows = self.rows(sources, None)?;
        check_count(rows[0].tokens, plan.tokens(), AS_THE_STEP)?;
        Ok((rows, Scratch::of(&self.shape, plan, false)?))
    }
}

const AS_THE_STEP: &str = "the number in the step";

/// The error for a layer that a step has not written.
pub(super) fn not_written() -> Error {
    Error::argument("layer", "not written", "a layer that the step has written")
}
