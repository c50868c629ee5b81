//! The system's allocator, which counts what a thread allocates. Implementing an allocator is unsafe; this one passes
//! every call on unchanged.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    /// The bytes that this thread holds beyond those at the start of a count, and their maximum.
    static HELD: Cell<[isize; 2]> = const { Cell::new([0; 2]) };
}

/// Runs a call, and returns the most bytes that this thread held meanwhile, beyond those that it held before.
pub fn counted<T>(call: impl FnOnce() -> T) -> (T, usize) {
    HELD.set([0; 2]);
    let value = call();
    (value, HELD.get()[1].max(0) as usize)
}

fn count(bytes: isize) {
    // Nothing is counted while a thread ends.
    let _ = HELD.try_with(|held| {
        let [now, most] = held.get();
        held.set([now + bytes, most.max(now + bytes)]);
    });
}

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: every call is passed to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller obeys the rules of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller obeys the rules of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the memory came from the system's allocator.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize - layout.size() as isize);
        // SAFETY: the memory came from the system's allocator.
        unsafe { System.realloc(memory, layout, size) }
    }
}
