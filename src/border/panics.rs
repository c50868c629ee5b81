//! Panics on demand, which show that a panic in any call leaves one object unusable and everything else as it was. Only
//! the addon that runs under AddressSanitizer has them (`npm run test:asan`).

use std::cell::Cell;

use napi_derive::napi;

thread_local! {
    /// The calls of this thread that do not panic before one that does.
    static LEFT: Cell<Option<u32>> = const { Cell::new(None) };
}

/// Lets the call behind the next `calls` ones panic, once it has done its work. Nothing makes no call panic.
#[napi(catch_unwind)]
pub fn panic_after(calls: Option<u32>) {
    LEFT.set(calls);
}

/// Panics if it is the turn of this call.
pub(super) fn planted() {
    match LEFT.get() {
        None => {}
        Some(0) => {
            LEFT.set(None);
            panic!("a planted panic");
        }
        Some(calls) => LEFT.set(Some(calls - 1)),
    }
}
