//! A step that is computed outside its cache: another thread writes its layers and computes attention.
//!
//! ```text
//! run = cache.runStep(step)
//! session.run(run, ..)         as one graph: a background task of the addon has the run (`onnx/native_session.rs`)
//! run.share()                  another JavaScript thread has the run (`lent_run.rs`)
//! cache.endRun(step, run)
//! ```
//!
//! Code that works on a run borrows it ([`NativeStepRun::lend`]) and returns it; until then other calls are refused
//! with `BUSY`. A background task returns it right before its promise settles, and never earlier. A run that was
//! disposed of in the meantime is not returned: its memory is freed with the work.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kvtide_core::Error;
use kvtide_tensor::StepRun;
use kvtide_tensor::runtime::Budget;
use napi::{Env, Result};
use napi_derive::napi;

use super::cache::NativePagedKvCache;
use super::step::NativePagedStep;
use crate::border::argument::{ArrayArg, count};
use crate::border::handle::{budget, guard};
use crate::border::refusal::Outcome;
use crate::border::shared;
use crate::sampling::logits::{Logits, NativeLogits};

/// The current holder of a run.
enum Place {
    Here(Box<StepRun>),
    /// Lent to background work.
    Lent,
    /// Taken back by the cache, or disposed of.
    Ended,
}

/// State shared by a run and the work that it is lent to.
struct Slot {
    place: Mutex<Place>,
    /// The logits of the last computation.
    logits: Mutex<Option<Arc<Logits>>>,
    /// The budget of the cache's thread.
    budget: Arc<Budget>,
}

/// A step run.
#[napi]
pub struct NativeStepRun {
    slot: Arc<Slot>,
}

/// A run lent to background work, until this value is dropped.
pub(crate) struct LentRun {
    slot: Arc<Slot>,
    /// `None` while it is being returned.
    run: Option<Box<StepRun>>,
}

impl LentRun {
    /// The budget that counts the memory of its results.
    pub fn budget(&self) -> &Arc<Budget> {
        &self.slot.budget
    }

    /// Stores logits for the run's owner.
    pub fn keep(&self, logits: Arc<Logits>) {
        locked(&self.slot.logits).replace(logits);
    }
}

impl Deref for LentRun {
    type Target = StepRun;

    fn deref(&self) -> &StepRun {
        self.run.as_ref().expect("a run until it is dropped")
    }
}

impl DerefMut for LentRun {
    fn deref_mut(&mut self) -> &mut StepRun {
        self.run.as_mut().expect("a run until it is dropped")
    }
}

impl Drop for LentRun {
    fn drop(&mut self) {
        let mut place = locked(&self.slot.place);
        if let (Place::Lent, Some(run)) = (&*place, self.run.take()) {
            *place = Place::Here(run);
        }
    }
}

fn locked<T>(place: &Mutex<T>) -> MutexGuard<'_, T> {
    place.lock().unwrap_or_else(PoisonError::into_inner)
}

impl NativeStepRun {
    /// Lends the run. Returns an error if it is already lent or has ended.
    pub(crate) fn lend(&self) -> Outcome<LentRun> {
        let run = self.take(Place::Lent)?;
        Ok(LentRun { slot: self.slot.clone(), run: Some(run) })
    }

    /// Takes the run out and leaves `left` in its place.
    fn take(&self, left: Place) -> Outcome<Box<StepRun>> {
        let mut place = locked(&self.slot.place);
        check_here(&place)?;
        match std::mem::replace(&mut *place, left) {
            Place::Here(run) => Ok(run),
            Place::Lent | Place::Ended => unreachable!("it is here"),
        }
    }

    /// Works on the run in place.
    fn with<R>(&self, work: impl FnOnce(&mut StepRun) -> Outcome<R>) -> Outcome<R> {
        let mut place = locked(&self.slot.place);
        check_here(&place)?;
        match &mut *place {
            Place::Here(run) => work(run),
            Place::Lent | Place::Ended => unreachable!("it is here"),
        }
    }
}

fn check_here(place: &Place) -> Outcome<()> {
    match place {
        Place::Here(_) => Ok(()),
        Place::Lent => Err(kvtide_tensor::Error::Busy.into()),
        Place::Ended => Err(kvtide_tensor::Error::Disposed { object: "StepRun" }.into()),
    }
}

#[napi]
impl NativePagedKvCache {
    /// Takes the data needed to compute an open step out of the cache.
    #[napi]
    pub fn run_step(&mut self, env: &Env, step: &mut NativePagedStep) -> Result<NativeStepRun> {
        self.cache.change(env, |cache| {
            let run = cache.run_step(step.get_mut()?)?;
            let place = Mutex::new(Place::Here(Box::new(run)));
            Ok(NativeStepRun { slot: Arc::new(Slot { place, logits: Mutex::default(), budget: budget() }) })
        })
    }

    /// Takes a run back: its writes count as written. If the run is lent, this returns an error and changes nothing.
    #[napi]
    pub fn end_run(&mut self, env: &Env, step: &mut NativePagedStep, run: &NativeStepRun) -> Result<()> {
        self.cache.change(env, |cache| {
            let step = step.get_mut()?;
            Ok(cache.end_run(step, *run.take(Place::Ended)?)?)
        })
    }
}

#[napi]
impl NativeStepRun {
    /// The number of tokens of all sequences.
    #[napi]
    pub fn tokens(&self, env: &Env) -> Result<u32> {
        guard(env, || self.with(|run| Ok(run.tokens())))
    }

    /// The bytes of a sequence's states; 0 if no layer keeps one.
    #[napi]
    pub fn state_bytes(&self, env: &Env) -> Result<f64> {
        guard(env, || self.with(|run| Ok(run.model().state_layout().bytes as f64)))
    }

    /// Writes the states of a sequence, by its index in the step, after the step's tokens.
    #[napi]
    pub fn write_states(&self, env: &Env, index: f64, bytes: ArrayArg) -> Result<()> {
        guard(env, || {
            self.with(|run| Ok(run.write_states(count("index", index)? as usize, bytes.memory("bytes")?.bytes())?))
        })
    }

    /// Copies the states that a sequence of the step had before it.
    #[napi]
    pub fn read_states(&self, env: &Env, index: f64, out: ArrayArg) -> Result<()> {
        guard(env, || {
            self.with(|run| Ok(run.read_states_into(count("index", index)? as usize, out.memory("out")?.bytes_mut())?))
        })
    }

    /// Lends the run to another thread, which takes it by the returned number.
    #[napi]
    pub fn share(&self, env: &Env) -> Result<f64> {
        guard(env, || Ok(shared::leave(self.lend()?)))
    }

    /// Takes the logits that were computed with the run. A second call is an error.
    #[napi]
    pub fn logits(&self, env: &Env) -> Result<NativeLogits> {
        guard(env, || {
            let refused = || Error::argument("logits", "none", "the logits of a computed step");
            Ok(NativeLogits::of(locked(&self.slot.logits).take().ok_or_else(refused)?))
        })
    }

    /// Ends the run if it is still open: its step is as it was before. Never fails.
    #[napi]
    pub fn dispose(&self, env: &Env) -> Result<()> {
        guard(env, || {
            let before = std::mem::replace(&mut *locked(&self.slot.place), Place::Ended);
            drop(before);
            Ok(())
        })
    }
}
