//! A thread's memory for a unit of work, which is kept from call to call.

use std::cell::RefCell;

use crate::base::error::Result;
use crate::base::memory::Budget;

/// Floats of a cache line: a vector across two lines takes twice as long.
pub(crate) const LINE: usize = 16;

/// Calls `work` with slices of these lengths, each at the start of a cache line and with arbitrary content.
pub(crate) fn with_floats<const N: usize, T>(
    lengths: [usize; N],
    work: impl FnOnce([&mut [f32]; N]) -> T,
) -> Result<T> {
    thread_local! {
        static FLOATS: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
    }
    FLOATS.with_borrow_mut(|floats| {
        let room = lengths.iter().map(|length| length.next_multiple_of(LINE)).sum::<usize>() + LINE;
        if floats.len() < room {
            let more = room - floats.len();
            floats.try_reserve_exact(more).map_err(|_| Budget::process().refusal(4 * room as u64))?;
            floats.resize(room, 0.0);
        }
        let lead = floats.as_ptr().align_offset(4 * LINE).min(LINE - 1);
        let mut rest = &mut floats[lead..];
        Ok(work(lengths.map(|length| {
            let (part, after) = std::mem::take(&mut rest).split_at_mut(length.next_multiple_of(LINE));
            rest = after;
            &mut part[..length]
        })))
    })
}
