//! The system's allocator with a budget of large zeroed allocations, which one call of one thread may still make before it
//! fails.
//!
//! Buffers, staging pages and the values of heads are such allocations; small lists are not. Implementing an allocator is
//! unsafe by its interface; this one forwards every call unchanged.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Smaller allocations always succeed.
const LARGE: usize = 1024;

struct Refusing;

#[global_allocator]
static ALLOCATOR: Refusing = Refusing;

thread_local! {
    /// Large pieces that still go through; without a number all do.
    static LEFT: Cell<Option<u32>> = const { Cell::new(None) };
}

/// Calls something that may take so many large pieces.
pub fn with<T>(allowed: u32, call: impl FnOnce() -> T) -> T {
    LEFT.set(Some(allowed));
    let value = call();
    LEFT.set(None);
    value
}

fn refuses(size: usize) -> bool {
    match LEFT.get() {
        Some(0) => size >= LARGE,
        Some(left) => {
            LEFT.set(Some(left - u32::from(size >= LARGE)));
            false
        }
        None => false,
    }
}

// SAFETY: every call goes to the system's allocator as it came, or answers that there is no memory.
unsafe impl GlobalAlloc for Refusing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the rules of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the rules of `alloc_zeroed`.
        if refuses(layout.size()) { std::ptr::null_mut() } else { unsafe { System.alloc_zeroed(layout) } }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the memory came from the system's allocator.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the memory came from the system's allocator.
        unsafe { System.realloc(memory, layout, size) }
    }
}
