//! Zeroed memory whose allocation may fail.
//!
//! `vec![0; n]` and candle's `zeros` abort the process if memory is exhausted. This module calls the allocator directly and
//! checks its answer. Large allocations come as lazily zeroed pages, and on Linux as huge pages if the system has them: the
//! append that needs them is the first to touch the pages of a grown buffer, and touching one huge page replaces touching
//! 512 small ones.
#![expect(unsafe_code, reason = "the allocator's own interface is unsafe; nothing safe answers instead of aborting")]

use std::alloc::{Layout, alloc_zeroed};

use bytemuck::Zeroable;

use crate::base::error::Result;
use crate::base::memory::Budget;

/// Allocates `len` zero bytes for use within one call.
pub(crate) fn zeroed_bytes(len: usize) -> Result<Vec<u8>> {
    zeroed_vec(len).ok_or_else(|| Budget::process().refusal(len as u64))
}

/// Allocates `len` zeros; `None` if the allocator has no memory for them.
pub(crate) fn zeroed_vec<T: Zeroable>(len: usize) -> Option<Vec<T>> {
    if len == 0 || size_of::<T>() == 0 {
        return Some(Vec::new());
    }
    let layout = Layout::array::<T>(len).ok()?;
    // SAFETY: the layout's size is not zero, because neither `len` nor the type's size is zero.
    let memory = unsafe { alloc_zeroed(layout) }.cast::<T>();
    if memory.is_null() {
        return None;
    }
    advise_huge_pages(memory.cast(), layout.size());
    // SAFETY: the global allocator returned this memory for the layout of `len` values of `T`, which is the layout that
    // `Vec` passes back; every value is initialised, because all zeros are a valid `T`.
    Some(unsafe { Vec::from_raw_parts(memory, len, len) })
}

/// Asks for huge pages in large memory that was not touched yet. If the system refuses, only speed suffers.
#[cfg(target_os = "linux")]
pub(super) fn advise_huge_pages(memory: *mut u8, bytes: usize) {
    /// A smaller allocation has at most a few huge pages and is not worth a system call.
    const LARGE: usize = 4 << 20;
    const PAGE: usize = 4096;
    if bytes >= LARGE {
        let lead = memory.align_offset(PAGE);
        // SAFETY: the range is within memory that belongs to the caller, because `lead` is less than a page and `bytes` is
        // many pages; the advice changes how the memory is backed and not its content.
        unsafe { libc::madvise(memory.add(lead).cast(), (bytes - lead) / PAGE * PAGE, libc::MADV_HUGEPAGE) };
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn advise_huge_pages(_: *mut u8, _: usize) {}

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
