//! Reads a tensor on a thread of Node's pool, while JavaScript continues. Reading from a GPU waits until the GPU
//! has finished its queued work.
//!
//! A task owns a pinned view. The cache that it shows refuses changes until right before the promise settles, and its
//! memory stays even if the tensor or the cache is disposed of. Cost: O(elements), copied once into the task's own
//! memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kvtide_tensor::View;
use napi::{Env, Result, Task};

use crate::border::external_array::ExternalArray;
use crate::border::handle::{catch, guard};
use crate::border::refusal::Outcome;
use crate::border::stop::NativeStop;

/// Reads a tensor's bytes, or its elements as 32-bit floats.
pub struct ReadTask {
    view: Option<View>,
    stop: Option<Arc<AtomicBool>>,
    as_floats: bool,
}

impl ReadTask {
    pub(crate) fn of(view: &View, as_floats: bool, stop: Option<&NativeStop>) -> Outcome<Self> {
        Ok(ReadTask { view: Some(view.pinned()?), stop: stop.map(NativeStop::flag), as_floats })
    }

    fn read(&self) -> Outcome<Vec<u8>> {
        let aborted = || kvtide_tensor::Error::Aborted;
        if self.stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed)) {
            return Err(aborted().into());
        }
        let view = self.view.as_ref().ok_or_else(aborted)?;
        if !self.as_floats {
            return Ok(view.to_bytes()?);
        }
        Ok(bytemuck::cast_slice(&view.to_f32()?).to_vec())
    }
}

impl Task for ReadTask {
    type Output = Outcome<Vec<u8>>;
    type JsValue = ExternalArray;

    fn compute(&mut self) -> Result<Self::Output> {
        Ok(catch(|| self.read()).unwrap_or_else(Err))
    }

    fn resolve(&mut self, env: Env, read: Self::Output) -> Result<Self::JsValue> {
        self.view = None;
        guard(&env, || Ok(ExternalArray::bytes(read?)))
    }
}
