//! What the kernels of one session share: the library, and the step that is computed.

use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kvtide_tensor::DType;

use super::api::{Status, number};
use super::library::Library;
use crate::border::handle::catch;
use crate::border::refusal::{Outcome, Refusal};
use crate::sequences::step_run::LentRun;

/// Element types of tensors.
pub(super) const ELEMENTS: [(c_int, DType); 3] =
    [(number::FLOAT, DType::F32), (number::FLOAT16, DType::F16), (number::BFLOAT16, DType::BF16)];

/// What the kernels of one session share.
pub(super) struct Shared {
    pub library: &'static Library,
    /// How many threads the session has, the caller's among them.
    pub threads: usize,
    state: Mutex<State>,
}

#[derive(Default)]
pub(super) struct State {
    /// The step that is computed.
    pub run: Option<LentRun>,
    /// What a kernel was refused with first.
    refusal: Option<Refusal>,
    /// Queries and outputs with their tokens first, where the graph has heads first.
    pub turned: [Vec<f32>; 2],
}

impl Shared {
    pub fn new(library: &'static Library, threads: usize) -> Arc<Self> {
        Arc::new(Shared { library, threads, state: Mutex::default() })
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives kernels the step that is computed from here on.
    pub fn begin(&self, run: LentRun) {
        let mut state = self.state();
        (state.run, state.refusal) = (Some(run), None);
    }

    /// Takes it back, and what a kernel was refused with.
    pub fn end(&self) -> (Option<LentRun>, Option<Refusal>) {
        let mut state = self.state();
        (state.run.take(), state.refusal.take())
    }

    /// Runs `work` for the library: a refusal or a panic is kept, and becomes a status.
    pub fn answer(&self, work: impl FnOnce() -> Outcome<()>) -> Status {
        let Err(refusal) = catch(work).unwrap_or_else(Err) else { return null_mut() };
        let status = self.library.status(&refusal.message);
        self.state().refusal.get_or_insert(refusal);
        status
    }
}
