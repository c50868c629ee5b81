//! A flag that ends background work early.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use napi_derive::napi;

/// A flag that JavaScript sets and background work checks.
#[napi]
#[derive(Default)]
pub struct NativeStop {
    flag: Arc<AtomicBool>,
}

#[napi]
impl NativeStop {
    #[napi(catch_unwind, constructor)]
    pub fn new() -> Self {
        NativeStop::default()
    }

    #[napi(catch_unwind)]
    pub fn stop(&self) {
        self.flag.store(true, Ordering::Relaxed);
    }
}

impl NativeStop {
    /// The flag, shared with the background work.
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        self.flag.clone()
    }
}
