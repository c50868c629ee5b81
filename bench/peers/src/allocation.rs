//! Measures the largest allocation of some work: its temporary memory, besides arguments and results.
//!
//! Outside such a measurement, an allocation costs one more read of a flag, for all lanes alike.
#![expect(unsafe_code, reason = "the interface of allocators is unsafe")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

static WATCHING: AtomicBool = AtomicBool::new(false);
static LARGEST: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, which records the largest request during a measurement.
struct Watched;

#[global_allocator]
static ALLOCATOR: Watched = Watched;

fn note(bytes: usize) {
    if WATCHING.load(Ordering::Relaxed) {
        LARGEST.fetch_max(bytes, Ordering::Relaxed);
    }
}

// SAFETY: every call is passed to the system's allocator unchanged.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller's duties are the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller's duties are the same.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        note(bytes);
        // SAFETY: the caller's duties are the same.
        unsafe { System.realloc(memory, layout, bytes) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's duties are the same.
        unsafe { System.dealloc(memory, layout) }
    }
}

/// Returns the bytes of the largest single allocation of `work`, on any thread, and the result of `work`.
pub fn largest_during<T>(work: impl FnOnce() -> T) -> (usize, T) {
    LARGEST.store(0, Ordering::Relaxed);
    WATCHING.store(true, Ordering::SeqCst);
    let result = work();
    WATCHING.store(false, Ordering::SeqCst);
    (LARGEST.load(Ordering::Relaxed), result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_allocation_is_seen() {
        // Other tests allocate at the same time, so the result may be larger, never smaller.
        let (largest, taken) = largest_during(|| [vec![1u8; 3 << 20], vec![0u8; 5 << 20]]);
        assert!(largest >= 5 << 20);
        assert_eq!(taken.map(|bytes| bytes.len()), [3 << 20, 5 << 20]);
    }
}
