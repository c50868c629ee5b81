//! Whether a cache is still there, and who reads it in the background.
//!
//! A cache shares its life with its buffers, and so with their views. While a [`Pin`] lives the cache refuses to change what
//! it holds; to be disposed of it accepts, and its memory then goes with the last pin.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::base::error::{Error, Result};

/// The life of one cache.
#[derive(Debug, Default)]
pub(crate) struct Life {
    closed: AtomicBool,
    readers: AtomicU32,
}

impl Life {
    /// True once the cache was disposed of.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Says that the cache was disposed of.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    /// Refuses a change while someone reads.
    pub fn check_idle(&self) -> Result<()> {
        if self.readers.load(Ordering::Acquire) > 0 { Err(Error::Busy) } else { Ok(()) }
    }
}

/// Someone who reads a cache in the background, until it is dropped.
#[derive(Debug)]
pub(crate) struct Pin(Arc<Life>);

impl Pin {
    /// One more reader.
    pub fn new(life: &Arc<Life>) -> Arc<Self> {
        life.readers.fetch_add(1, Ordering::Relaxed);
        Arc::new(Pin(life.clone()))
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.0.readers.fetch_sub(1, Ordering::Release);
    }
}
