//! Steps: slots of all layers, written and attended to layer by layer.

use kvtide_core::Error;
use kvtide_tensor::PagedStep;
use napi::{Env, Result};
use napi_derive::napi;

use super::cache::NativePagedKvCache;
use super::sequence_batch::SequenceBatch;
use crate::border::number::count;
use crate::border::refusal::Outcome;
use crate::border::tensor_arg::{TensorArg, source};

/// A step; nothing once it has ended.
#[napi]
pub struct NativePagedStep {
    step: Option<PagedStep>,
}

impl NativePagedStep {
    /// An open step.
    pub(crate) fn of(step: PagedStep) -> Self {
        NativePagedStep { step: Some(step) }
    }

    /// The open step; refused once it has ended.
    pub(super) fn get(&self) -> Outcome<&PagedStep> {
        Ok(self.step.as_ref().ok_or(Error::StepClosed)?)
    }

    /// As [`NativePagedStep::get`], to write with.
    fn get_mut(&mut self) -> Outcome<&mut PagedStep> {
        Ok(self.step.as_mut().ok_or(Error::StepClosed)?)
    }
}

#[napi]
impl NativePagedKvCache {
    /// `batch` is that of an append.
    #[napi]
    pub fn begin_step(
        &mut self,
        env: &Env,
        batch: &[f64],
        numbers: f64,
        parents: Option<&[i32]>,
    ) -> Result<NativePagedStep> {
        self.cache.change(env, |cache| {
            let batch = SequenceBatch::read(batch, numbers)?;
            Ok(NativePagedStep::of(cache.begin_step(batch.step(parents))?))
        })
    }

    #[napi]
    pub fn write_layer(
        &mut self,
        env: &Env,
        step: &mut NativePagedStep,
        layer: f64,
        k: TensorArg,
        v: TensorArg,
        meta: &[f64],
    ) -> Result<()> {
        self.cache.change(env, |cache| {
            let step = step.get_mut()?;
            let (k, v) = (source("k", &k, meta, 0)?, source("v", &v, meta, 1)?);
            Ok(cache.write_layer(step, count("layer", layer)?, k, v)?)
        })
    }

    /// Refuses a step that has ended, or one of whose sequences was dropped.
    #[napi]
    pub fn check_step(&self, env: &Env, step: &NativePagedStep) -> Result<()> {
        self.cache.read(env, |cache| Ok(cache.check_step(step.get()?)?))
    }

    #[napi]
    pub fn commit_step(&mut self, env: &Env, step: &mut NativePagedStep, tokens: Option<&[u32]>) -> Result<()> {
        self.cache.change(env, |cache| {
            cache.commit_step(step.get_mut()?, tokens)?;
            step.step = None;
            Ok(())
        })
    }

    #[napi]
    pub fn undo_step(&mut self, env: &Env, step: &mut NativePagedStep) -> Result<()> {
        self.cache.change(env, |cache| {
            cache.undo_step(step.get_mut()?)?;
            step.step = None;
            Ok(())
        })
    }

    /// Ends a step, if it is open, as if it had never been; never refused.
    #[napi]
    pub fn release_step(&mut self, env: &Env, step: &mut NativePagedStep) -> Result<()> {
        let Some(step) = step.step.take() else { return Ok(()) };
        if self.cache.get().is_err() {
            return Ok(());
        }
        self.cache.change(env, |cache| {
            cache.release_step(step);
            Ok(())
        })
    }
}
