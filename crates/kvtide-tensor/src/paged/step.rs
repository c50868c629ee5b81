//! A group's part in a step: some tokens of its layers, written and attended to layer by layer, counted once for all of them.
//!
//! ```text
//! let planned = group.plan_step(..)?             what it needs is known, and its memory is there
//! let mut step = group.open_step(planned, ..)?   slots of all layers are taken
//! group.write_layer(&mut step, 0, [k, v])?       the queries of layer 0 attend to group.step_pages(&step, 0)?
//! group.commit_step(&mut step, ids)?             lengths move on; a step that is dropped leaves no trace
//! ```
//!
//! Beginning costs O(blocks), a layer O(bytes of its tokens), the end O(runs).

use std::sync::Arc;

use kvtide_core::paged::{Append, StepTableRows, StepTables, WritePlan, Writer};

use super::dropped::{Dropped, DroppedList};
use super::group::PageGroup;
use super::page_rows::PageRows;
use super::pages::Scratch;
use super::rows::TokenRows;
use super::slabs::Slabs;
use super::write::{PlannedWrite, check_count};
use crate::base::error::{Error, Result};
use crate::tensor::source::Source;

/// An open step of a [`PageGroup`]; dropped before it was committed, it is undone at the cache's next call.
#[derive(Debug)]
#[must_use = "a step that is dropped is undone"]
pub(crate) struct GroupStep {
    /// Nothing once it has ended.
    pub(super) plan: Option<Arc<WritePlan>>,
    pub(super) sequences: Box<[u64]>,
    pub(super) written: Box<[bool]>,
    dropped: DroppedList,
}

/// Which tokens a step is for.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepTokens<'a> {
    /// The sequences, each once.
    pub sequences: &'a [u64],
    /// Sequence i gets the tokens `offsets[i]..offsets[i + 1]`; without offsets one each.
    pub offsets: Option<&'a [u32]>,
    /// For each token the one of its sequence's transaction that it follows, -1 for the one before it; without, a chain.
    pub parents: Option<&'a [i32]>,
}

impl StepTokens<'_> {
    /// Tokens of all sequences.
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

    /// Tokens of all sequences.
    #[must_use]
    pub fn tokens(&self) -> u32 {
        self.plan.as_ref().map_or(0, |plan| plan.tokens())
    }

    /// Where the tokens of each sequence begin, and where the last ones end.
    pub(crate) fn offsets(&self) -> Result<Vec<i32>> {
        Ok(self.plan()?.offsets().map(|offset| offset as i32).collect())
    }

    /// Whether it was neither committed nor undone.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.plan.is_some()
    }

    /// Whether a layer was written.
    pub fn has_written(&self, layer: u32) -> bool {
        self.written[layer as usize]
    }

    /// Whether all layers were written.
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
    /// Plans a step, and takes the memory of it: opening it is not refused then.
    pub(crate) fn plan_step(&mut self, tokens: StepTokens<'_>) -> Result<PlannedWrite> {
        self.change_pages()?;
        let StepTokens { sequences, offsets, parents } = tokens;
        let append = Append { sequences, offsets, parents, writer: Writer::Step };
        let write = self.planner.check_append(&append)?;
        self.plan_write(write)
    }

    /// Opens a step as planned.
    pub(crate) fn open_step(&mut self, mut planned: PlannedWrite, tokens: StepTokens<'_>) -> Result<GroupStep> {
        self.poisoned = true;
        self.prepare_write(&mut planned)?;
        self.planner.open_step(&planned.plan)?;
        self.poisoned = false;
        Ok(GroupStep {
            plan: Some(Arc::new(planned.plan)),
            sequences: tokens.sequences.into(),
            written: vec![false; self.planner.num_layers() as usize].into(),
            dropped: self.dropped.clone(),
        })
    }

    /// Refuses tables that a step which is planned does not fit in.
    pub(crate) fn prepare_tables(
        &self,
        planned: &PlannedWrite,
        rows: &mut StepTableRows,
        tables: &StepTables<'_>,
    ) -> Result<()> {
        Ok(rows.prepare(&self.planner, &planned.plan, tables)?)
    }

    /// Writes down where the step's tokens go and what its sequences hold, in arrays of the caller's. `rows` are kept between
    /// steps: what has not changed since is not written again.
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

    /// Writes the tokens of a layer: K and V `[kvHeads, tokens, headDim]`, the tokens of all sequences one behind the other.
    /// A layer may be written again while the step is open.
    pub fn write_layer(&mut self, step: &mut GroupStep, layer: u32, sources: [Source<'_>; 2]) -> Result<()> {
        self.change_pages()?;
        self.check_step(step)?;
        let plan = step.plan()?;
        let (rows, scratch) = self.slabs.step_rows(plan, sources)?;
        self.planner.reserve_marks(plan)?;
        // New rows of floats are nobody's until the layer is marked: when they fail, the step can still be undone.
        self.poisoned = self.shape().pages.is_low_bit() || step.has_written(layer);
        self.slabs.write(plan, layer..layer + 1, &rows, &scratch)?;
        self.poisoned = true;
        self.planner.mark_layer(plan, layer)?;
        self.poisoned = false;
        step.written[layer as usize] = true;
        Ok(())
    }

    /// Refuses what [`PageGroup::write_layer`] would refuse of the tokens of a layer, in a step of so many.
    pub(crate) fn check_rows(&self, sources: [&Source<'_>; 2], tokens: u32) -> Result<()> {
        check_count(self.tokens_of(sources)?, tokens, AS_THE_STEP)
    }

    /// The pages of a layer that the step's queries attend to, its own tokens included: once it has written them.
    pub fn step_pages(&mut self, step: &GroupStep, layer: u32) -> Result<PageRows<'_>> {
        self.check_written(step, layer)?;
        self.pages(layer, &step.sequences)
    }

    /// Refuses the end of a step that quantises pages while another is computed elsewhere.
    pub fn check_seals(&self, step: &GroupStep) -> Result<()> {
        let seals = step.plan()?.pages().iter().any(|write| write.fills);
        if seals { self.check_pages() } else { Ok(()) }
    }

    /// Ends a step that was checked: its tokens count in all layers, and those of known `ids` can be found by others.
    pub fn commit_step(&mut self, step: &mut GroupStep, ids: Option<&[u32]>) -> Result<()> {
        let plan = step.plan()?;
        let scratch = Scratch::of(self.shape(), plan, false)?;
        self.planner.reserve_close(plan, ids)?;
        self.poisoned = true;
        self.seal_filled(plan, &scratch)?;
        self.planner.close_step(plan, ids)?;
        self.poisoned = false;
        step.plan = None;
        Ok(())
    }

    /// Makes a step one of the first `tokens` tokens of each sequence, written in all layers.
    #[cfg(feature = "captured-steps")]
    pub fn shorten_step(&mut self, step: &mut GroupStep, tokens: u32) -> Result<()> {
        self.change()?;
        let plan = Arc::make_mut(step.plan.as_mut().ok_or(kvtide_core::Error::StepClosed)?);
        self.planner.check_step(plan)?;
        self.planner.shorten_step(plan, tokens)?;
        self.planner.mark_layers(plan, 0..self.planner.num_layers())?;
        step.written.fill(true);
        Ok(())
    }

    /// Ends a step: its sequences are as if it had never been.
    pub fn undo_step(&mut self, step: &mut GroupStep) -> Result<()> {
        self.change()?;
        if let Some(plan) = &step.plan {
            self.planner.undo_step(plan)?;
            step.plan = None;
        }
        Ok(())
    }

    /// Refuses a layer that a step has not written: what its queries would see of it is not there yet.
    pub fn check_written(&self, step: &GroupStep, layer: u32) -> Result<()> {
        self.check_step(step)?;
        if step.has_written(layer) { Ok(()) } else { Err(not_written()) }
    }

    /// Refuses a step that has ended, or one of whose sequences was dropped.
    pub fn check_step(&self, step: &GroupStep) -> Result<()> {
        Ok(self.planner.check_step(step.plan()?)?)
    }
}

impl Slabs {
    /// The rows of a layer of a step, and room to quantise them.
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

const AS_THE_STEP: &str = "as the step has";

/// The refusal of a layer that a step has not written.
pub(crate) fn not_written() -> Error {
    Error::argument("layer", "not written", "a layer that the step has written")
}
