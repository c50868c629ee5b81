//! The system's allocator with a limit: the number of allocations that one call of one thread may still make.
//!
//! Implementing an allocator requires unsafe code; this one passes every call on unchanged.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Refusing;

#[global_allocator]
static ALLOCATOR: Refusing = Refusing;

thread_local! {
    /// Allocations that still go through; without a number all do.
    static LEFT: Cell<Option<u32>> = const { Cell::new(None) };
}

/// Calls something that may allocate so many times.
pub fn with<T>(allowed: u32, call: impl FnOnce() -> T) -> T {
    LEFT.set(Some(allowed));
    let value = call();
    LEFT.set(None);
    value
}

fn refuses() -> bool {
    match LEFT.get() {
        Some(0) => true,
        Some(left) => {
            LEFT.set(Some(left - 1));
            false
        }
        None => false,
    }
}

// SAFETY: every call goes to the system's allocator as it came, or answers that there is no memory.
unsafe impl GlobalAlloc for Refusing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the rules of `alloc`.
        if refuses() { std::ptr::null_mut() } else { unsafe { System.alloc(layout) } }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the memory came from the system's allocator.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the memory came from the system's allocator.
        if refuses() { std::ptr::null_mut() } else { unsafe { System.realloc(memory, layout, size) } }
    }
}
