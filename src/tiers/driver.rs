//! Drives a restore or a writer. JavaScript makes its calls step by step, and a thread of Node's pool does its
//! work.
//!
//! Each step crosses the border once. A step that needs the cache's thread is taken in the crossing that leads to it,
//! unless the cache is in use.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kvtide_core::Code;
use kvtide_tensor::Error;
use kvtide_tiers::{
    Answer, Answered, Call, CallerGate, Driver, Fault, FaultKind, Machine, Need, Outcome as Settled, Permit, Prober,
    Restore, Step, Writer,
};
use napi::bindgen_prelude::AsyncTask;
use napi::{Env, Result};
use napi_derive::napi;

use crate::border::argument::ArrayArg;
use crate::border::external_array::ExternalArray;
use crate::border::handle::guard;
use crate::border::refusal::Outcome;
use crate::border::task::PoolTask;
use crate::sequences::cache::NativePagedKvCache;
use crate::sequences::prefix::NativePagedPrefix;

/// An entry of a store.
#[napi(object, object_from_js = false)]
pub struct NativeEntry {
    pub key: String,
    #[napi(ts_type = "Uint8Array")]
    pub value: ExternalArray,
}

/// The next step of JavaScript.
#[napi(object, object_from_js = false)]
pub struct NativeStep {
    /// `has`, `get`, `put` and `remove` are calls of the store, and `again` repeats the last one; `cache` means that
    /// the cache is in use.
    #[napi(ts_type = "'done' | 'cache' | 'work' | 'pause' | 'again' | 'has' | 'get' | 'put' | 'remove'")]
    pub kind: &'static str,
    /// The length of a pause, or the timeout of an attempt.
    pub milliseconds: f64,
    /// The timeout of the call with all its attempts.
    pub within: f64,
    pub permit: f64,
    /// The keys of a call; those of `put` are in the entries.
    pub keys: Vec<String>,
    pub bytes_max: f64,
    pub entries: Vec<NativeEntry>,
}

/// The match of a prompt, and its length.
#[napi(object, object_from_js = false)]
pub struct NativeFound {
    pub prefix: NativePagedPrefix,
    pub length: f64,
}

/// A state machine.
pub(super) enum Moving {
    Restore(Restore),
    Writer(Writer),
    Prober(Prober),
}

impl Moving {
    fn machine(&mut self) -> &mut dyn Machine {
        match self {
            Moving::Restore(machine) => machine,
            Moving::Writer(machine) => machine,
            Moving::Prober(machine) => machine,
        }
    }

    fn restore(&mut self) -> Outcome<&mut Restore> {
        match self {
            Moving::Restore(restore) => Ok(restore),
            _ => Err(Error::Disposed { object: "match" }.into()),
        }
    }
}

impl Machine for Moving {
    fn advance(&mut self) -> Need {
        self.machine().advance()
    }

    fn answer(&mut self, answer: Answer<'_>) {
        self.machine().answer(answer);
    }

    fn work(&mut self) {
        self.machine().work();
    }
}

/// The reason for a step.
enum Cause {
    /// JavaScript asked for the next step, and asks again if the step is refused.
    Advance,
    /// JavaScript gave a call up.
    Miss,
    /// An attempt ended with this outcome.
    Ended(Permit, Settled),
}

/// The driver of a machine; empty while a thread works on it, and once it was disposed of.
#[napi]
pub struct NativeDriver {
    driver: Arc<Mutex<Option<Driver<Moving>>>>,
    gate: Option<Arc<CallerGate>>,
    within: f64,
}

impl NativeDriver {
    pub(super) fn new(machine: Moving, within: Option<Duration>, gate: Option<Arc<CallerGate>>) -> Self {
        let driver = Arc::new(Mutex::new(Some(Driver::new(machine, gate.clone()))));
        NativeDriver { driver, gate, within: within.map_or(f64::INFINITY, milliseconds) }
    }

    fn driver(&self) -> MutexGuard<'_, Option<Driver<Moving>>> {
        self.driver.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a step, and the steps on the cache's thread that follow it. If the machine has ended, only the gate counts
    /// the outcome of an attempt.
    fn step(
        &self,
        env: &Env,
        cache: &mut NativePagedKvCache,
        cause: Cause,
        step: impl FnOnce(&mut Driver<Moving>) -> Option<Step>,
    ) -> Result<NativeStep> {
        let can_repeat = matches!(cause, Cause::Advance);
        let mut driver = self.driver();
        let Some(driver) = driver.as_mut() else {
            if let (Some(gate), Cause::Ended(permit, outcome)) = (&self.gate, cause) {
                gate.settle(permit, outcome);
            }
            return Ok(self.show(Step::Done));
        };
        let mut step = step(driver).unwrap_or(Step::Done);
        while let Step::Cache = step {
            let begun = cache.cache.change(env, |cache| match driver.machine.restore()?.begin(cache) {
                // A report cannot be made twice, so only a step without one is refused.
                Err(error) if error.code() == Code::Busy && !can_repeat => Ok(false),
                begun => Ok(begun.map(|()| true)?),
            })?;
            if !begun {
                break;
            }
            step = driver.advance();
        }
        Ok(self.show(step))
    }

    fn show(&self, step: Step) -> NativeStep {
        let mut shown = NativeStep {
            kind: "done",
            milliseconds: 0.0,
            within: self.within,
            permit: -1.0,
            keys: Vec::new(),
            bytes_max: 0.0,
            entries: Vec::new(),
        };
        match step {
            Step::Done => {}
            Step::Cache => shown.kind = "cache",
            Step::Work => shown.kind = "work",
            Step::Pause(pause) => (shown.kind, shown.milliseconds) = ("pause", milliseconds(pause)),
            Step::Call { call, permit: Permit(permit) } => {
                shown.permit = permit as f64;
                shown.milliseconds = self.gate.as_ref().map_or(0.0, |gate| milliseconds(gate.attempt_timeout()));
                match call {
                    None => shown.kind = "again",
                    Some(Call::Has(keys)) => (shown.kind, shown.keys) = ("has", keys),
                    Some(Call::Remove(keys)) => (shown.kind, shown.keys) = ("remove", keys),
                    Some(Call::Get { keys, bytes_max }) => {
                        (shown.kind, shown.keys, shown.bytes_max) = ("get", keys, bytes_max as f64);
                    }
                    Some(Call::Put(entries)) => {
                        let entry = |(key, value)| NativeEntry { key, value: ExternalArray::bytes(value) };
                        (shown.kind, shown.entries) = ("put", entries.into_iter().map(entry).collect());
                    }
                }
            }
        }
        shown
    }
}

fn milliseconds(of: Duration) -> f64 {
    of.as_secs_f64() * 1000.0
}

#[napi]
impl NativeDriver {
    /// Returns the next step: the first one, the one after a pause, or the one after work. Refused if the step needs
    /// the cache and the cache is in use.
    #[napi]
    pub fn advance(&self, env: &Env, cache: &mut NativePagedKvCache) -> Result<NativeStep> {
        self.step(env, cache, Cause::Advance, |driver| Some(driver.advance()))
    }

    /// Passes on the store's answer to an attempt: one flag for each key, one value for each key, or neither for a call
    /// without a result.
    #[napi]
    pub fn answer(
        &self,
        env: &Env,
        cache: &mut NativePagedKvCache,
        permit: f64,
        exist: Option<Vec<bool>>,
        #[napi(ts_arg_type = "unknown[] | undefined")] values: Option<Vec<ArrayArg>>,
    ) -> Result<NativeStep> {
        let permit = Permit(permit as u64);
        let outcome = Settled::Answered(Answered::default());
        self.step(env, cache, Cause::Ended(permit, outcome), |driver| match (exist, values) {
            (Some(exist), _) => driver.answer(permit, Answer::Has(&exist)),
            (None, Some(values)) => {
                let value = |value: &ArrayArg| value.memory("value").ok().map(|memory| memory.bytes());
                driver.answer(permit, Answer::Values(&values.iter().map(value).collect::<Vec<_>>()))
            }
            (None, None) => driver.answer(permit, Answer::Stored(usize::MAX)),
        })
    }

    /// Notes that an attempt failed; `kind` is the public name of the fault.
    #[napi]
    pub fn failed(
        &self,
        env: &Env,
        cache: &mut NativePagedKvCache,
        permit: f64,
        kind: String,
        about: String,
    ) -> Result<NativeStep> {
        let kind = FaultKind::ALL.into_iter().find(|of| of.as_str() == kind).unwrap_or(FaultKind::Unreachable);
        let (permit, fault) = (Permit(permit as u64), Fault::new(kind, about));
        let cause = Cause::Ended(permit, Settled::Failed(fault.clone()));
        self.step(env, cache, cause, |driver| driver.failed(permit, fault))
    }

    /// Ends an attempt without counting for or against the store.
    #[napi]
    pub fn abandon(&self, env: &Env, cache: &mut NativePagedKvCache, permit: f64) -> Result<NativeStep> {
        let permit = Permit(permit as u64);
        self.step(env, cache, Cause::Ended(permit, Settled::Abandoned), |driver| driver.abandon(permit))
    }

    /// Gives the call up; its attempt goes on.
    #[napi]
    pub fn miss(&self, env: &Env, cache: &mut NativePagedKvCache) -> Result<NativeStep> {
        self.step(env, cache, Cause::Miss, |driver| Some(driver.miss()))
    }

    /// Does the next work on a thread of Node's pool.
    #[napi(catch_unwind, ts_return_type = "Promise<void>")]
    pub fn work(&self) -> AsyncTask<PoolTask<(), ()>> {
        let shared = self.driver.clone();
        let work = move || {
            let taken = shared.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(mut driver) = taken {
                driver.machine.work();
                *shared.lock().unwrap_or_else(PoisonError::into_inner) = Some(driver);
            }
            Ok(())
        };
        PoolTask::of(work, |()| ())
    }

    /// Makes the restored blocks available to prompts, and looks up the prompt if `partial` is given.
    #[napi]
    pub fn end(&self, env: &Env, cache: &mut NativePagedKvCache, partial: Option<bool>) -> Result<Option<NativeFound>> {
        let prefix = cache.cache.change(env, |cache| {
            let mut driver = self.driver();
            let restore = driver.as_mut().ok_or(Error::Disposed { object: "match" })?.machine.restore()?;
            restore.end(cache)?;
            let prefix = partial.map(|partial| restore.find(cache, partial)).transpose()?;
            *driver = None;
            Ok(prefix)
        })?;
        Ok(prefix.map(|prefix| {
            let length = prefix.length().into();
            NativeFound { prefix: NativePagedPrefix::new(prefix), length }
        }))
    }

    /// Ends the machine, and frees the new blocks that did not get a key.
    #[napi]
    pub fn dispose(&self, env: &Env) -> Result<()> {
        guard(env, || {
            *self.driver() = None;
            Ok(())
        })
    }
}
