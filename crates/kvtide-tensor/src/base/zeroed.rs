//! Zeroed memory that may be refused.
//!
//! `vec![0; n]` and candle's `zeros` abort the process when memory is out. This asks the allocator and looks at its answer;
//! large pieces come as lazily zeroed pages, and on Linux as huge ones where the system has them: the pages of a growing buffer
//! are touched for the first time by the append that waits for them, and one huge page is touched once instead of 512 times.
#![expect(unsafe_code, reason = "the allocator's own interface is unsafe; nothing safe answers instead of aborting")]

use std::alloc::{Layout, alloc_zeroed};

use bytemuck::Zeroable;

use crate::base::error::Result;
use crate::base::memory::Budget;

/// `len` bytes of zeros that come and go within one call.
pub(crate) fn zeroed_bytes(len: usize) -> Result<Vec<u8>> {
    zeroed_vec(len).ok_or_else(|| Budget::process().refusal(len as u64))
}

/// `len` zeros, or nothing when the allocator has no memory for them.
pub(crate) fn zeroed_vec<T: Zeroable>(len: usize) -> Option<Vec<T>> {
    if len == 0 || size_of::<T>() == 0 {
        return Some(Vec::new());
    }
    let layout = Layout::array::<T>(len).ok()?;
    // SAFETY: the layout has a size over zero: neither `len` nor the type's size is zero.
    let memory = unsafe { alloc_zeroed(layout) }.cast::<T>();
    if memory.is_null() {
        return None;
    }
    advise_huge_pages(memory.cast(), layout.size());
    // SAFETY: the global allocator gave this memory with the layout of `len` values of `T`, which is the layout `Vec` gives
    // back; every value is initialised, since all zeros are a valid `T`.
    Some(unsafe { Vec::from_raw_parts(memory, len, len) })
}

/// Asks for huge pages in large memory that nobody has touched yet. A refusal changes nothing but speed.
#[cfg(target_os = "linux")]
fn advise_huge_pages(memory: *mut u8, bytes: usize) {
    /// Below this a piece lies in a page or two, and is not worth a call of the system.
    const LARGE: usize = 4 << 20;
    const PAGE: usize = 4096;
    if bytes >= LARGE {
        let lead = memory.align_offset(PAGE);
        // SAFETY: the range lies within memory that belongs to the caller, since `lead` is less than a page and `bytes` is
        // many; the advice changes how it is backed, and nothing of its content.
        unsafe { libc::madvise(memory.add(lead).cast(), (bytes - lead) / PAGE * PAGE, libc::MADV_HUGEPAGE) };
    }
}

#[cfg(not(target_os = "linux"))]
fn advise_huge_pages(_: *mut u8, _: usize) {}

#[cfg(test)]
mod tests {
    use super::zeroed_vec;

    #[test]
    fn zeros_are_zeros() {
        assert_eq!(zeroed_vec::<f32>(1000), Some(vec![0.0; 1000]));
        assert_eq!(zeroed_vec::<u8>(0), Some(vec![]));
    }

    #[test]
    fn more_than_there_is_gives_nothing() {
        assert_eq!(zeroed_vec::<f32>(usize::MAX / 8), None);
        assert_eq!(zeroed_vec::<f32>(usize::MAX), None);
    }
}
