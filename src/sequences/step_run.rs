//! A step that is computed apart from its cache: its layers are written and attended to on another thread.
//!
//! ```text
//! run = cache.runStep(step)
//! session.run(run, ..)         one graph: a task of the addon has it (`onnx/native_session.rs`)
//! run.share()                  another JavaScript thread has it (`lent_run.rs`)
//! cache.endRun(step, run)
//! ```
//!
//! Whoever works on a run takes it along ([`NativeStepRun::lend`]) and brings it back; meanwhile other calls are refused with `BUSY`. A
//! task brings it back right before its promise is settled, and never earlier. One that was disposed of meanwhile is not brought back:
//! its memory goes with the work.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kvtide_core::Error;
use kvtide_tensor::{Budget, StepRun};
use napi::{Env, Result};
use napi_derive::napi;

use super::cache::NativePagedKvCache;
use super::step::NativePagedStep;
use crate::border::handle::{budget, guard};
use crate::border::refusal::Outcome;
use crate::border::shared;
use crate::sampling::logits::{Logits, NativeLogits};

/// Where a run is.
enum Place {
    Here(Box<StepRun>),
    /// With work in the background.
    Lent,
    /// It was taken back, or disposed of.
    Ended,
}

/// What a run and those who work on it share.
struct Slot {
    place: Mutex<Place>,
    /// What was computed last.
    logits: Mutex<Option<Arc<Logits>>>,
    /// Of the thread that has the cache.
    budget: Arc<Budget>,
}

/// A run of a step.
#[napi]
pub struct NativeStepRun {
    slot: Arc<Slot>,
}

/// A run that is with work in the background, until this is dropped.
pub(crate) struct LentRun {
    slot: Arc<Slot>,
    /// Nothing once it is on its way back.
    run: Option<Box<StepRun>>,
}

impl LentRun {
    /// What the memory of its results is taken from.
    pub fn budget(&self) -> &Arc<Budget> {
        &self.slot.budget
    }

    /// Leaves logits for the run's owner.
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
    /// The run, to be worked on elsewhere: refused while other work has it, and once it has ended.
    pub(crate) fn lend(&self) -> Outcome<LentRun> {
        let run = self.take(Place::Lent)?;
        Ok(LentRun { slot: self.slot.clone(), run: Some(run) })
    }

    /// Takes the run out, and leaves this in its place.
    fn take(&self, left: Place) -> Outcome<Box<StepRun>> {
        let mut place = locked(&self.slot.place);
        check_here(&place)?;
        match std::mem::replace(&mut *place, left) {
            Place::Here(run) => Ok(run),
            Place::Lent | Place::Ended => unreachable!("it is here"),
        }
    }

    /// Works on the run where it is.
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
    /// What computing an open step needs, apart from the cache.
    #[napi]
    pub fn run_step(&mut self, env: &Env, step: &mut NativePagedStep) -> Result<NativeStepRun> {
        self.cache.change(env, |cache| {
            let run = cache.run_step(step.get_mut()?)?;
            let place = Mutex::new(Place::Here(Box::new(run)));
            Ok(NativeStepRun { slot: Arc::new(Slot { place, logits: Mutex::default(), budget: budget() }) })
        })
    }

    /// Takes a run back: what it has written counts as written. While work has it, it is refused and stays.
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
    /// Tokens of all sequences.
    #[napi]
    pub fn tokens(&self, env: &Env) -> Result<u32> {
        guard(env, || self.with(|run| Ok(run.tokens())))
    }

    /// Lends the run to whoever takes this number, on any thread.
    #[napi]
    pub fn share(&self, env: &Env) -> Result<f64> {
        guard(env, || Ok(shared::leave(self.lend()?)))
    }

    /// The logits that were computed with it, once.
    #[napi]
    pub fn logits(&self, env: &Env) -> Result<NativeLogits> {
        guard(env, || {
            let refused = || Error::argument("logits", "none", "those of a step that was computed");
            Ok(NativeLogits::of(locked(&self.slot.logits).take().ok_or_else(refused)?))
        })
    }

    /// Ends the run, if it has not: its step is as it was before. Never refused.
    #[napi]
    pub fn dispose(&self, env: &Env) -> Result<()> {
        guard(env, || {
            let before = std::mem::replace(&mut *locked(&self.slot.place), Place::Ended);
            drop(before);
            Ok(())
        })
    }
}
