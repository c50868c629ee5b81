//! Passes values between JavaScript threads of one process. One thread leaves a value here under a number and sends
//! that number in a message; the other thread takes it, once. A value that is never taken must be removed by the thread
//! that left it.

use std::any::Any;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use kvtide_core::Error;
use napi_derive::napi;

use super::argument::whole;
use crate::border::refusal::Outcome;

#[derive(Default)]
struct Left {
    next: u64,
    values: HashMap<u64, Box<dyn Any + Send>>,
}

static LEFT: Mutex<Option<Left>> = Mutex::new(None);

fn left() -> MutexGuard<'static, Option<Left>> {
    LEFT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Leaves a value for another thread and returns its number.
pub(crate) fn leave<T: Any + Send>(value: T) -> f64 {
    let mut guard = left();
    let left = guard.get_or_insert_default();
    left.next += 1;
    left.values.insert(left.next, Box::new(value));
    left.next as f64
}

/// Takes the value of a number. Returns an error if there is none, or if it has another type.
pub(crate) fn take<T: Any>(number: f64) -> Outcome<T> {
    let key = whole("shared", number)?;
    let refused = || Error::argument("shared", number, "the number of a shared value not taken yet");
    let mut guard = left();
    let values = &mut guard.as_mut().ok_or_else(refused)?.values;
    if !values.get(&key).is_some_and(|value| value.is::<T>()) {
        return Err(refused().into());
    }
    let value = values.remove(&key).and_then(|value| value.downcast().ok()).ok_or_else(refused)?;
    Ok(*value)
}

/// Removes a value that has not been taken. Never fails.
#[napi(catch_unwind)]
pub fn unshare(number: f64) {
    let taken = whole("shared", number).ok().and_then(|key| left().as_mut()?.values.remove(&key));
    drop(taken);
}
