//! The progress of work in the background, and a request to end it early.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::error::Result;

/// Shared by the thread that works and the caller that waits.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    total: Arc<AtomicU64>,
}

impl Watch {
    /// Creates a watch that ends the work once this flag is set.
    #[must_use]
    pub fn until(stop: Arc<AtomicBool>) -> Self {
        Watch { stop, ..Watch::default() }
    }

    /// Returns the bytes that are done, and the bytes in total.
    #[must_use]
    pub fn progress(&self) -> (u64, u64) {
        (self.done.load(Ordering::Relaxed), self.total.load(Ordering::Relaxed))
    }

    pub(crate) fn begin(&self, total: u64) {
        self.done.store(0, Ordering::Relaxed);
        self.total.store(total, Ordering::Relaxed);
    }

    /// Returns an error if the work was asked to end.
    pub fn check(&self) -> Result<()> {
        if self.stop.load(Ordering::Relaxed) { Err(kvtide_tensor::Error::Aborted.into()) } else { Ok(()) }
    }

    /// Counts bytes; returns an error if the work was asked to end.
    pub(crate) fn advance(&self, bytes: usize) -> Result<()> {
        self.check()?;
        self.done.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(())
    }
}
