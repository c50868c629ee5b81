//! Captured steps of a whole model in blocks.

use kvtide_core::model::LayerKind;

use super::ModelCache;
use super::layer_rows::Rules;
use crate::captured::{CaptureOptions, CapturedStep, LayerAt, StepRecorder, capture, commit, replay};
use crate::error::Result;

impl ModelCache {
    /// Captures a decode step of some sequences, as [`PagedKvCache::capture_step`](crate::PagedKvCache::capture_step) does; layers are
    /// the model's. Refused in tensors.
    pub fn capture_step<'a>(
        &mut self,
        options: CaptureOptions<'_>,
        work: impl FnMut(&mut StepRecorder<'_>) -> Result<()> + 'a,
    ) -> Result<CapturedStep<'a>> {
        let layers = (0..self.model.layers().len() as u32).map(|layer| {
            let place = self.model.place(layer);
            let is_own = !matches!(self.model.layers()[layer as usize].kind, LayerKind::SharedWith(_));
            LayerAt { group: place.group as usize, index: place.index, is_own, rules: Rules::of(&self.model, layer) }
        });
        capture(self.store.groups()?, layers.collect(), options, work)
    }

    /// Enqueues one step more, as [`PagedKvCache::replay_step`](crate::PagedKvCache::replay_step) does.
    pub fn replay_step(&mut self, step: &mut CapturedStep<'_>) -> Result<()> {
        replay(self.store.groups()?, step)
    }

    /// Ends a captured step in all layers, as [`PagedKvCache::commit_captured`](crate::PagedKvCache::commit_captured) does.
    pub fn commit_captured(&mut self, step: &mut CapturedStep<'_>, tokens: Option<&[u32]>) -> Result<()> {
        commit(self.store.groups()?, step, tokens)
    }
}
