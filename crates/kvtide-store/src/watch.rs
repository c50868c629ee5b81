//! How far work in the background is, and whether it is to end early.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::error::Result;

/// Shared by who works and who waits.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    total: Arc<AtomicU64>,
}

impl Watch {
    /// Ends the work where this flag is raised.
    #[must_use]
    pub fn until(stop: Arc<AtomicBool>) -> Self {
        Watch { stop, ..Watch::default() }
    }

    /// Bytes that are done, and of how many.
    #[must_use]
    pub fn progress(&self) -> (u64, u64) {
        (self.done.load(Ordering::Relaxed), self.total.load(Ordering::Relaxed))
    }

    pub(crate) fn begin(&self, total: u64) {
        self.done.store(0, Ordering::Relaxed);
        self.total.store(total, Ordering::Relaxed);
    }

    /// Refuses to go on once the work is to end.
    pub fn check(&self) -> Result<()> {
        if self.stop.load(Ordering::Relaxed) { Err(kvtide_tensor::Error::Aborted.into()) } else { Ok(()) }
    }

    /// Counts bytes, unless the work is to end.
    pub(crate) fn advance(&self, bytes: usize) -> Result<()> {
        self.check()?;
        self.done.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(())
    }
}
