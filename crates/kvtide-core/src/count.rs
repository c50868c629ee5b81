//! Limits of numbers: counts of tokens, slots and blocks, and lengths, fit in an `i32`, because step tables store them
//! as such.

use crate::error::{Error, Result};

/// The largest number of tokens, slots or blocks anywhere.
pub const COUNT_MAX: u32 = i32::MAX as u32;

/// The largest number of tokens ever appended to one cache: the largest integer that JavaScript represents exactly.
pub const CURRENT_MAX: u64 = (1 << 53) - 1;

/// Returns `value` as a count, or an error that names the argument.
#[inline]
pub fn count(argument: &'static str, value: u64) -> Result<u32> {
    u32::try_from(value)
        .ok()
        .filter(|&value| value <= COUNT_MAX)
        .ok_or_else(|| Error::argument(argument, value, "at most 2147483647"))
}

/// Like [`count`], but at least 1.
pub fn count_positive(argument: &'static str, value: u64) -> Result<u32> {
    match count(argument, value)? {
        0 => Err(Error::argument(argument, 0, "at least 1")),
        value => Ok(value),
    }
}
