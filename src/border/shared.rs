//! What goes from one JavaScript thread of the process to another one. It is left here under a number, which crosses in a message, and
//! taken once; who left it takes it away again where nobody has.

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

/// Leaves a value for another thread; answers its number.
pub(crate) fn leave<T: Any + Send>(value: T) -> f64 {
    let mut guard = left();
    let left = guard.get_or_insert_default();
    left.next += 1;
    left.values.insert(left.next, Box::new(value));
    left.next as f64
}

/// The value of a number; refused where it is not there, or is of another kind.
pub(crate) fn take<T: Any>(number: f64) -> Outcome<T> {
    let key = whole("shared", number)?;
    let refused = || Error::argument("shared", number, "the number of something that was left for this thread");
    let mut guard = left();
    let values = &mut guard.as_mut().ok_or_else(refused)?.values;
    if !values.get(&key).is_some_and(|value| value.is::<T>()) {
        return Err(refused().into());
    }
    let value = values.remove(&key).and_then(|value| value.downcast().ok()).ok_or_else(refused)?;
    Ok(*value)
}

/// Takes away what nobody has taken. Never refused.
#[napi]
pub fn unshare(number: f64) {
    let taken = whole("shared", number).ok().and_then(|key| left().as_mut()?.values.remove(&key));
    drop(taken);
}
