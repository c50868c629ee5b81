//! Captured steps of all layers.

use super::cache::PagedKvCache;
use super::layer_pages::Rules;
use crate::base::error::Result;
use crate::captured::{CaptureOptions, CapturedStep, LayerAt, StepRecorder, capture, commit, replay};

impl PagedKvCache {
    /// Captures a decode step of some sequences: `work` runs once as it is, which gives each of them its first token, and once more
    /// to be recorded. It says the same both times.
    ///
    /// Refused with `DEVICE_UNAVAILABLE` where the device has no graphs, and with `INVALID_ARGUMENT` for low-bit pages.
    pub fn capture_step<'a>(
        &mut self,
        options: CaptureOptions<'_>,
        work: impl FnMut(&mut StepRecorder<'_>) -> Result<()> + 'a,
    ) -> Result<CapturedStep<'a>> {
        let layer = |layer| {
            let place = self.place(layer)?;
            let (is_own, rules) = (self.shared(layer).is_none(), Rules::of(&self.model, layer));
            Ok(LayerAt { group: place.group as usize, index: place.index, is_own, rules })
        };
        let layers = (0..self.model.layers().len() as u32).map(layer).collect::<Result<_>>()?;
        let mut step = capture(&mut self.groups, layers, options, work)?;
        step.cache = self.id;
        Ok(step)
    }

    /// Enqueues one step more: a token of each sequence. Refused with `CACHE_OVERFLOW` when all steps that there may be were done,
    /// and with `STALE_STEP` when one of its sequences was dropped.
    pub fn replay_step(&mut self, step: &mut CapturedStep<'_>) -> Result<()> {
        self.check_cache(step.cache)?;
        replay(&self.groups, step)
    }

    /// Ends a captured step, once the device has done all of it: its tokens count. `tokens` are their ids, where they are known, those
    /// of each sequence one behind the other.
    pub fn commit_captured(&mut self, step: &mut CapturedStep<'_>, tokens: Option<&[u32]>) -> Result<()> {
        self.check_cache(step.cache)?;
        commit(&mut self.groups, step, tokens)
    }
}
