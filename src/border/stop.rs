//! What ends work in the background early.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use napi_derive::napi;

/// A flag that JavaScript raises, and work looks at.
#[napi]
#[derive(Default)]
pub struct NativeStop {
    flag: Arc<AtomicBool>,
}

#[napi]
impl NativeStop {
    #[napi(constructor)]
    pub fn new() -> Self {
        NativeStop::default()
    }

    #[napi]
    pub fn stop(&self) {
        self.flag.store(true, Ordering::Relaxed);
    }
}

impl NativeStop {
    /// The flag, for the work.
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        self.flag.clone()
    }
}
