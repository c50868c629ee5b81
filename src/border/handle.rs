//! Wrappers that every exported call with an environment runs in. They catch panics, turn errors into exceptions, and
//! report the native memory used by a thread's objects to V8.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use kvtide_core::{Code, details};
use kvtide_tensor::runtime::Budget;
use napi::{Env, Result};

use crate::border::refusal::{Outcome, Refusal, raise};

/// Runs `work` for a function that belongs to no object.
pub(crate) fn guard<T>(env: &Env, work: impl FnOnce() -> Outcome<T>) -> Result<T> {
    let outcome = catch(work).unwrap_or_else(Err);
    report(env);
    outcome.map_err(|refusal| raise(env, refusal))
}

/// An object that JavaScript holds. It lives until it is disposed of; after a panic in one of its calls it is unusable.
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

    /// Runs `work`, which may change the object.
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

    /// Runs `work`, which only reads the object.
    pub fn read<R>(&self, env: &Env, work: impl FnOnce(&T) -> Outcome<R>) -> Result<R> {
        self.get().and_then(|value| catch(|| work(value)).unwrap_or_else(Err)).map_err(|refusal| raise(env, refusal))
    }

    /// Borrows the object for a call on another one.
    pub fn get(&self) -> Outcome<&T> {
        match &self.state {
            State::Live(value) => Ok(value),
            _ => self.gone(),
        }
    }

    /// Borrows the object mutably for a call on another one.
    pub fn get_mut(&mut self) -> Outcome<&mut T> {
        if !matches!(self.state, State::Live(_)) {
            self.gone()?;
        }
        match &mut self.state {
            State::Live(value) => Ok(value),
            _ => unreachable!("the object is gone"),
        }
    }

    /// Takes the object out. The handle is disposed of afterwards.
    pub fn take(&mut self) -> Outcome<T> {
        self.get()?;
        match std::mem::replace(&mut self.state, State::Disposed) {
            State::Live(value) => Ok(value),
            _ => unreachable!("the object is gone"),
        }
    }

    /// Disposes of the object. If it is still live, `end` is called with it first.
    pub fn dispose(&mut self, env: &Env, end: impl FnOnce(&mut T)) {
        if let State::Live(value) = &mut self.state {
            // A panic here is ignored: the object is dropped in any case.
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

/// Runs `work` on an object that other threads change too. After a panic of any of them, the object is unusable.
pub(crate) fn locked<T, R>(shared: &Mutex<T>, work: impl FnOnce(&mut T) -> Outcome<R>) -> Outcome<R> {
    let mut value = shared.lock().map_err(|_| kvtide_tensor::Error::Poisoned)?;
    let outcome = work(&mut value);
    #[cfg(feature = "panics")]
    super::panics::planted();
    outcome
}

/// Runs `work` and turns a panic into an error.
pub(crate) fn catch<T>(work: impl FnOnce() -> T) -> std::result::Result<T, Refusal> {
    let work = || {
        let done = work();
        #[cfg(feature = "panics")]
        super::panics::planted();
        done
    };
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().map(ToString::to_string);
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        Refusal { code: Code::Internal, message: format!("internal error: {text}"), details: details![reason: &text] }
    })
}

thread_local! {
    /// Memory used by the objects of this JavaScript thread, under the limit of the process.
    static THREAD: Arc<Budget> = Budget::new(None);
    /// The number of bytes last reported to V8.
    static REPORTED: Cell<i64> = const { Cell::new(0) };
}

/// The memory budget of this thread's objects.
pub(crate) fn budget() -> Arc<Budget> {
    THREAD.with(Arc::clone)
}

/// Reports the native memory used by this thread's objects to V8, if it has changed.
pub(crate) fn report(env: &Env) {
    let used = i64::try_from(THREAD.with(|budget| budget.used())).unwrap_or(i64::MAX);
    let change = used - REPORTED.get();
    // If this fails, V8 collects garbage later than it could; nothing else depends on it.
    if change != 0 && env.adjust_external_memory(change).is_ok() {
        REPORTED.set(used);
    }
}
