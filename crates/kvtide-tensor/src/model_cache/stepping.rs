//! Steps of a whole model, and appends of all layers at once.

use kvtide_core::model::{LayerDescription, LayerKind};
use kvtide_core::paged::{StepRows, StepTables};

use super::layer_rows::{LayerRows, Rules};
use super::store::StepState;
use super::{ModelCache, ModelStep};
use crate::attention::{AttendOptions, Attended};
use crate::error::{Error, Result};
use crate::paged::StepTokens;
use crate::source::Source;

impl ModelCache {
    /// Takes slots of all layers for the tokens of a step. In tensors, a step is of one sequence.
    pub fn begin_step(&mut self, tokens: StepTokens<'_>) -> Result<ModelStep> {
        let state = self.store.begin_step(tokens)?;
        Ok(self.step_of(state, tokens))
    }

    /// The same with its tables in arrays of the caller's, one of each for each group, as
    /// [`PagedKvCache::prepare_step`](crate::PagedKvCache::prepare_step) writes them. In tensors there are no blocks.
    pub fn prepare_step(
        &mut self,
        tokens: StepTokens<'_>,
        rows: &mut [StepRows],
        tables: Vec<StepTables<'_>>,
    ) -> Result<ModelStep> {
        let groups = self.model.groups().len();
        for (argument, length) in [("rows.length", rows.len()), ("tables.length", tables.len())] {
            if length != groups {
                return Err(Error::argument(argument, length, format!("{groups}, one for each group")));
            }
        }
        let state = self.store.prepare_step(tokens, rows, tables)?;
        Ok(self.step_of(state, tokens))
    }

    fn step_of(&self, state: StepState, tokens: StepTokens<'_>) -> ModelStep {
        ModelStep {
            state,
            sequences: tokens.sequences.into(),
            tokens: tokens.count(),
            written: vec![false; self.model.layers().len()].into(),
            cache: self.id,
        }
    }

    /// Writes a layer's tokens: K and V `[kvHeads, tokens, headDim]`, those of all sequences one behind the other; of one
    /// sequence also `[batch, kvHeads, tokens, headDim]`.
    pub fn write_layer<'a>(
        &mut self,
        step: &mut ModelStep,
        layer: u32,
        k: impl Into<Source<'a>>,
        v: impl Into<Source<'a>>,
    ) -> Result<()> {
        self.check_layer(step, layer)?;
        if let LayerKind::SharedWith(source) = self.model.layers()[layer as usize].kind {
            let expected = format!("a layer of its own keys and values: this one reads those of layer {source}");
            return Err(Error::argument("layer", layer, expected));
        }
        self.store.write(&mut step.state, self.model.place(layer), k.into(), v.into())?;
        step.written[layer as usize] = true;
        Ok(())
    }

    /// Attends from a layer's queries to what it holds, the step's tokens included: `[tokens, heads, headDim]`, of one
    /// sequence also `[batch, heads, tokens, headDim]`. Scale, soft cap, window and sinks are the model's, unless `options` say
    /// otherwise.
    pub fn attend_layer<'a>(
        &mut self,
        step: &ModelStep,
        layer: u32,
        q: impl Into<Source<'a>>,
        options: &AttendOptions<'_>,
    ) -> Result<Attended> {
        self.layer_rows(step, layer)?.attend(q, options)
    }

    /// What a layer's queries see, the step's tokens included; apart from the cache once it is pinned.
    pub fn layer_rows(&mut self, step: &ModelStep, layer: u32) -> Result<LayerRows<'_>> {
        self.check_layer(step, layer)?;
        let rules = Rules::of(&self.model, layer);
        Ok(LayerRows { rows: self.store.rows(&step.state, self.model.place(layer))?, rules })
    }

    /// Refuses a step of another cache, one that has ended, and one of whose sequences was dropped.
    pub fn check_step(&mut self, step: &ModelStep) -> Result<()> {
        self.check_own(step.cache)?;
        self.store.check_step(&step.state)
    }

    /// Ends a step: its tokens count in all layers. `tokens` are their ids, where they are known. Refused with `STEP_INCOMPLETE`
    /// while a layer is not written; then the step stays open.
    pub fn commit_step(&mut self, step: &mut ModelStep, tokens: Option<&[u32]>) -> Result<()> {
        self.check_step(step)?;
        let own = |layer: &usize| is_own(&self.model.layers()[*layer]);
        let layers: Vec<usize> = (0..step.written.len()).filter(own).filter(|&layer| !step.written[layer]).collect();
        if !layers.is_empty() && step.tokens > 0 {
            return Err(Error::StepIncomplete { layers });
        }
        if let Some(ids) = tokens
            && ids.len() != step.tokens as usize
        {
            return Err(Error::argument("tokens.length", ids.len(), format!("{}, one for each token", step.tokens)));
        }
        self.store.commit_step(&mut step.state, tokens)
    }

    /// Ends a step: its sequences are as if it had never been. Blocks that were evicted for it stay so, and where none was left to
    /// copy the block that it went on in, prompts no longer find what lay there.
    pub fn undo_step(&mut self, step: &mut ModelStep) -> Result<()> {
        self.check_own(step.cache)?;
        self.store.undo_step(&mut step.state)
    }

    /// Ends a step as [`ModelCache::undo_step`] does, if it is open. Never refused, not even while someone reads in the background.
    pub fn release_step(&mut self, step: ModelStep) {
        drop(step);
        // Where there is no memory for it now, it is taken back at the next call.
        let _ = self.store.collect();
    }

    fn check_layer(&mut self, step: &ModelStep, layer: u32) -> Result<()> {
        self.check_step(step)?;
        self.check_number(layer)
    }
}

pub(super) fn is_own(layer: &LayerDescription) -> bool {
    !matches!(layer.kind, LayerKind::SharedWith(_))
}
