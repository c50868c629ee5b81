//! A thread's memory for a unit of work, which is kept from call to call unless it is large.

use std::cell::Cell;

use crate::base::error::Result;
use crate::base::memory::Budget;

/// Floats of a cache line: a vector across two lines takes twice as long.
pub(crate) const LINE: usize = 16;

/// The most floats that a thread keeps: 16 MiB. More are needed for long prompts of large models only, where allocating them
/// takes little of the time.
const KEPT_MAX: usize = 1 << 22;

thread_local! {
    static FLOATS: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

/// Calls `work` with slices of these lengths, each at the start of a cache line and with arbitrary content. A call inside
/// `work`, as a thread makes it that does other work while it waits, has memory of its own.
pub(crate) fn with_floats<const N: usize, T>(
    lengths: [usize; N],
    work: impl FnOnce([&mut [f32]; N]) -> T,
) -> Result<T> {
    let mut floats = FLOATS.take();
    let room = lengths.iter().map(|length| length.next_multiple_of(LINE)).sum::<usize>() + LINE;
    if floats.len() < room {
        let more = room - floats.len();
        floats.try_reserve_exact(more).map_err(|_| Budget::process().refusal(4 * room as u64))?;
        floats.resize(room, 0.0);
    }
    let lead = floats.as_ptr().align_offset(4 * LINE).min(LINE - 1);
    let mut rest = &mut floats[lead..];
    let answer = work(lengths.map(|length| {
        let (part, after) = std::mem::take(&mut rest).split_at_mut(length.next_multiple_of(LINE));
        rest = after;
        &mut part[..length]
    }));
    if floats.len() <= KEPT_MAX {
        FLOATS.set(floats);
    }
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::{FLOATS, KEPT_MAX, with_floats};

    #[test]
    fn memory_of_a_long_prompt_is_not_kept() {
        with_floats([KEPT_MAX / 2], |_| ()).unwrap();
        let kept = FLOATS.take();
        assert!((KEPT_MAX / 2..KEPT_MAX).contains(&kept.len()));
        FLOATS.set(kept);
        with_floats([2 * KEPT_MAX], |_| ()).unwrap();
        assert_eq!(FLOATS.take().capacity(), 0);
    }

    #[test]
    fn a_call_inside_a_call_has_memory_of_its_own() {
        with_floats([20, 3], |[many, few]| {
            many.fill(1.0);
            few.fill(2.0);
            with_floats([50], |[inside]| inside.fill(3.0)).unwrap();
            assert!(many.iter().all(|&float| float == 1.0) && few.iter().all(|&float| float == 2.0));
        })
        .unwrap();
    }
}
