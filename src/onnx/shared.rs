//! State that the kernels of one session share: the library, and the step being computed.

use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kvtide_tensor::DType;

use super::api::{Status, number};
use super::encoded::StepEncodings;
use super::library::Library;
use crate::border::handle::catch;
use crate::border::refusal::{Outcome, Refusal};
use crate::sequences::step_run::LentRun;

/// Element types of tensors.
pub(super) const ELEMENTS: [(c_int, DType); 3] =
    [(number::FLOAT, DType::F32), (number::FLOAT16, DType::F16), (number::BFLOAT16, DType::BF16)];

/// State that the kernels of one session share.
pub(super) struct Shared {
    pub library: &'static Library,
    /// Number of threads of the session, including the calling one.
    pub threads: usize,
    state: Mutex<State>,
}

#[derive(Default)]
pub(super) struct State {
    /// The step being computed.
    pub run: Option<LentRun>,
    /// The encodings of its tokens.
    pub encodings: StepEncodings,
    /// The first error of a kernel.
    refusal: Option<Refusal>,
    /// Queries and outputs in token-first order, for graphs with heads first.
    pub turned: [Vec<f32>; 2],
    /// Keys and values, if the operator rotates them or finds them in a packed tensor.
    pub laid: [Vec<f32>; 2],
}

impl Shared {
    pub fn new(library: &'static Library, threads: usize) -> Arc<Self> {
        Arc::new(Shared { library, threads, state: Mutex::default() })
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a step available to the kernels.
    pub fn begin(&self, run: LentRun, encodings: StepEncodings) {
        let mut state = self.state();
        (state.run, state.encodings, state.refusal) = (Some(run), encodings, None);
    }

    /// Takes the step back, together with the first error of a kernel.
    pub fn end(&self) -> (Option<LentRun>, Option<Refusal>) {
        let mut state = self.state();
        state.encodings = StepEncodings::default();
        (state.run.take(), state.refusal.take())
    }

    /// Runs `work` for the library. An error or a panic is stored and returned as a status.
    pub fn answer(&self, work: impl FnOnce() -> Outcome<()>) -> Status {
        let Err(refusal) = catch(work).unwrap_or_else(Err) else { return null_mut() };
        let status = self.library.status(&refusal.message);
        self.state().refusal.get_or_insert(refusal);
        status
    }
}
