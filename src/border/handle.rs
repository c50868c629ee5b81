//! What every exported call runs in: panics are caught, refusals become exceptions, and V8 is told how much native memory the objects
//! of its thread keep.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use kvtide_core::{Code, details};
use kvtide_tensor::Budget;
use napi::{Env, Result};

use crate::border::refusal::{Outcome, Refusal, raise};

/// Runs `work`, which belongs to no object.
pub(crate) fn guard<T>(env: &Env, work: impl FnOnce() -> Outcome<T>) -> Result<T> {
    let outcome = catch(work).unwrap_or_else(Err);
    report(env);
    outcome.map_err(|refusal| raise(env, refusal))
}

/// An object that JavaScript holds: there until it is disposed of, and unusable once a call on it has panicked.
pub(crate) struct Handle<T> {
    name: &'static str,
    state: State<T>,
}

enum State<T> {
    Live(T),
    Poisoned,
    Disposed,
}

impl<T> Handle<T> {
    pub fn new(name: &'static str, value: T) -> Self {
        Handle { name, state: State::Live(value) }
    }

    /// Runs `work` on the object, which it may change.
    pub fn change<R>(&mut self, env: &Env, work: impl FnOnce(&mut T) -> Outcome<R>) -> Result<R> {
        let outcome = match &mut self.state {
            State::Live(value) => match catch(|| work(value)) {
                Ok(outcome) => outcome,
                Err(panic) => {
                    self.state = State::Poisoned;
                    Err(panic)
                }
            },
            _ => self.gone().map(|_| unreachable!("the object is gone")),
        };
        report(env);
        outcome.map_err(|refusal| raise(env, refusal))
    }

    /// Runs `work` on the object, which it only reads.
    pub fn read<R>(&self, env: &Env, work: impl FnOnce(&T) -> Outcome<R>) -> Result<R> {
        self.get().and_then(|value| catch(|| work(value)).unwrap_or_else(Err)).map_err(|refusal| raise(env, refusal))
    }

    /// The object, for a call on another one.
    pub fn get(&self) -> Outcome<&T> {
        match &self.state {
            State::Live(value) => Ok(value),
            _ => self.gone(),
        }
    }

    /// The object, to change it within a call on another one.
    pub fn get_mut(&mut self) -> Outcome<&mut T> {
        if !matches!(self.state, State::Live(_)) {
            self.gone()?;
        }
        match &mut self.state {
            State::Live(value) => Ok(value),
            _ => unreachable!("the object is gone"),
        }
    }

    /// Takes the object out: what is left was disposed of.
    pub fn take(&mut self) -> Outcome<T> {
        self.get()?;
        match std::mem::replace(&mut self.state, State::Disposed) {
            State::Live(value) => Ok(value),
            _ => unreachable!("the object is gone"),
        }
    }

    /// Ends the object; `end` sees it first, if it is still there.
    pub fn dispose(&mut self, env: &Env, end: impl FnOnce(&mut T)) {
        if let State::Live(value) = &mut self.state {
            // A panic on the way out leaves nothing behind that could be used.
            let _ = catch(|| end(value));
        }
        self.state = State::Disposed;
        report(env);
    }

    fn gone(&self) -> Outcome<&T> {
        Err(match self.state {
            State::Disposed => kvtide_tensor::Error::Disposed { object: self.name }.into(),
            _ => kvtide_tensor::Error::Poisoned.into(),
        })
    }
}

/// Runs `work`; a panic in it is a refusal.
pub(crate) fn catch<T>(work: impl FnOnce() -> T) -> std::result::Result<T, Refusal> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().map(ToString::to_string);
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        Refusal { code: Code::Internal, message: format!("internal error: {text}"), details: details![reason: &text] }
    })
}

thread_local! {
    /// What this JavaScript thread's objects use, under the limit of the process.
    static THREAD: Arc<Budget> = Budget::new(None);
    /// What V8 was told.
    static REPORTED: Cell<i64> = const { Cell::new(0) };
}

/// The budget of this thread's objects.
pub(crate) fn budget() -> Arc<Budget> {
    THREAD.with(Arc::clone)
}

/// Tells V8 how much native memory this thread's objects keep, when that has changed.
pub(crate) fn report(env: &Env) {
    let used = i64::try_from(THREAD.with(|budget| budget.used())).unwrap_or(i64::MAX);
    let change = used - REPORTED.get();
    // If this fails, V8 collects garbage later than it could; nothing else depends on it.
    if change != 0 && env.adjust_external_memory(change).is_ok() {
        REPORTED.set(used);
    }
}
