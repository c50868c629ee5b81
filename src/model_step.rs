//! Steps of a model's cache: slots of all layers, written and attended to layer by layer.

use kvtide_tensor::ModelStep;
use napi::{Env, Result};
use napi_derive::napi;

use crate::attend::answer;
use crate::attend_answer::NativeAnswer;
use crate::attend_lists::ListsArg;
use crate::attend_request::Request;
use crate::attend_task::NativeAttendRequest;
use crate::batch::Batch;
use crate::bytes::ArrayArg;
use crate::model_cache::NativeModelCache;
use crate::number::count;
use crate::open_step::OpenStep;
use crate::source::{TensorArg, source};
use crate::stop::NativeStop;

/// A step; nothing once it has ended.
#[napi]
pub struct NativeModelStep {
    step: OpenStep<ModelStep>,
}

impl NativeModelStep {
    /// An open step.
    pub(crate) fn of(step: ModelStep) -> Self {
        NativeModelStep { step: OpenStep::of(step) }
    }
}

#[napi]
impl NativeModelStep {
    /// Tokens of all sequences.
    #[napi]
    pub fn tokens(&self) -> f64 {
        self.step.get().map_or(0.0, |step| step.tokens().into())
    }
}

#[napi]
impl NativeModelCache {
    /// `batch` is that of an append to a paged cache.
    #[napi]
    pub fn begin_step(
        &mut self,
        env: &Env,
        batch: &[f64],
        numbers: f64,
        parents: Option<&[i32]>,
    ) -> Result<NativeModelStep> {
        self.cache.change(env, |cache| {
            let batch = Batch::read(batch, numbers)?;
            Ok(NativeModelStep::of(cache.begin_step(batch.step(parents))?))
        })
    }

    /// Refuses a step that has ended, or one of whose sequences was dropped.
    #[napi]
    pub fn check_step(&mut self, env: &Env, step: &NativeModelStep) -> Result<()> {
        self.cache.change(env, |cache| Ok(cache.check_step(step.step.get()?)?))
    }

    #[napi]
    pub fn write_layer(
        &mut self,
        env: &Env,
        step: &mut NativeModelStep,
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

    /// Attends from a layer's queries, and answers an output, or one with its sums.
    #[napi(ts_return_type = "unknown")]
    pub fn attend_layer<'a>(
        &mut self,
        env: &'a Env,
        step: &NativeModelStep,
        q: TensorArg,
        call: ArrayArg,
        out: ArrayArg,
        lists: ListsArg,
    ) -> Result<NativeAnswer<'a>> {
        self.cache.change(env, |cache| {
            let numbers = call.numbers()?;
            answer(env, &Request::over_layer(&q, cache, step.step.get()?, &lists, numbers)?, out, numbers)
        })
    }

    /// The same in the background, once it is started.
    #[napi]
    pub fn attend_layer_request(
        &mut self,
        env: &Env,
        step: &NativeModelStep,
        q: TensorArg,
        call: ArrayArg,
        lists: ListsArg,
        stop: Option<&NativeStop>,
    ) -> Result<NativeAttendRequest> {
        self.cache.change(env, |cache| {
            NativeAttendRequest::of(&Request::over_layer(&q, cache, step.step.get()?, &lists, call.numbers()?)?, stop)
        })
    }

    #[napi]
    pub fn commit_step(&mut self, env: &Env, step: &mut NativeModelStep, tokens: Option<&[u32]>) -> Result<()> {
        self.cache.change(env, |cache| {
            cache.commit_step(step.step.get_mut()?, tokens)?;
            step.step.end();
            Ok(())
        })
    }

    #[napi]
    pub fn undo_step(&mut self, env: &Env, step: &mut NativeModelStep) -> Result<()> {
        self.cache.change(env, |cache| {
            cache.undo_step(step.step.get_mut()?)?;
            step.step.end();
            Ok(())
        })
    }

    /// Ends a step, if it is open, as if it had never been; never refused.
    #[napi]
    pub fn release_step(&mut self, env: &Env, step: &mut NativeModelStep) -> Result<()> {
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
