//! Numbers from JavaScript, which are all `f64`: taken whole or refused, never cut.

use kvtide_core::{COUNT_MAX, Error};

use crate::border::refusal::Outcome;

/// The largest whole number that an `f64` tells from its neighbours.
const WHOLE_MAX: f64 = 9_007_199_254_740_991.0;

/// A whole number from 0 on.
pub(crate) fn whole(argument: &'static str, value: f64) -> Outcome<u64> {
    if value.fract() == 0.0 && (0.0..=WHOLE_MAX).contains(&value) {
        return Ok(value as u64);
    }
    Err(Error::argument(argument, value, "a whole number from 0 to 9007199254740991").into())
}

/// A number of tokens, slots or blocks.
pub(crate) fn count(argument: &'static str, value: f64) -> Outcome<u32> {
    if value.fract() == 0.0 && (0.0..=f64::from(COUNT_MAX)).contains(&value) {
        return Ok(value as u32);
    }
    Err(Error::argument(argument, value, "a whole number from 0 to 2147483647").into())
}

/// A whole number that may be missing.
pub(crate) fn optional<T>(
    argument: &'static str,
    value: Option<f64>,
    convert: fn(&'static str, f64) -> Outcome<T>,
) -> Outcome<Option<T>> {
    value.map(|value| convert(argument, value)).transpose()
}
