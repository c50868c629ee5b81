//! Steps of a paged cache: slots of all layers, written layer by layer.

use kvtide_tensor::PagedStep;
use napi::{Env, Result};
use napi_derive::napi;

use crate::batch::Batch;
use crate::number::count;
use crate::open_step::OpenStep;
use crate::paged_kv_cache::NativePagedKvCache;
use crate::source::{TensorArg, source};

/// A step; nothing once it has ended.
#[napi]
pub struct NativePagedStep {
    step: OpenStep<PagedStep>,
}

impl NativePagedStep {
    /// An open step.
    pub(crate) fn of(step: PagedStep) -> Self {
        NativePagedStep { step: OpenStep::of(step) }
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
            let batch = Batch::read(batch, numbers)?;
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
            let step = step.step.get_mut()?;
            let (k, v) = (source("k", &k, meta, 0)?, source("v", &v, meta, 1)?);
            Ok(cache.write_layer(step, count("layer", layer)?, k, v)?)
        })
    }

    /// Refuses a step that has ended, or one of whose sequences was dropped.
    #[napi]
    pub fn check_step(&self, env: &Env, step: &NativePagedStep) -> Result<()> {
        self.cache.read(env, |cache| Ok(cache.check_step(step.step.get()?)?))
    }

    /// The same, and a layer that the step has not written.
    #[napi]
    pub fn check_written(&self, env: &Env, step: &NativePagedStep, layer: f64) -> Result<()> {
        self.cache.read(env, |cache| Ok(cache.check_written(step.step.get()?, count("layer", layer)?)?))
    }

    #[napi]
    pub fn commit_step(&mut self, env: &Env, step: &mut NativePagedStep, tokens: Option<&[u32]>) -> Result<()> {
        self.cache.change(env, |cache| {
            cache.commit_step(step.step.get_mut()?, tokens)?;
            step.step.end();
            Ok(())
        })
    }

    #[napi]
    pub fn undo_step(&mut self, env: &Env, step: &mut NativePagedStep) -> Result<()> {
        self.cache.change(env, |cache| {
            cache.undo_step(step.step.get_mut()?)?;
            step.step.end();
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
