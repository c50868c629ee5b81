//! Dropped handles, which are reclaimed at the cache's next call, whether it changes or reads.
//!
//! A snapshot, a prefix and a step can outlive a borrow of their cache, and can be dropped anywhere. They then leave their
//! number in a list that they share with the cache.

use std::sync::{Arc, Mutex, PoisonError};

use kvtide_core::paged::WritePlan;

/// A dropped handle.
#[derive(Debug)]
pub(super) enum Dropped {
    /// Blocks that were held under this number.
    Hold(u64),
    /// A step that was not committed.
    Step(Arc<WritePlan>),
    /// A sequence.
    Sequence(u64),
}

/// The list of a cache. Objects that share it belong to that cache.
#[derive(Clone, Debug, Default)]
pub(super) struct DroppedList(Arc<Mutex<Vec<Dropped>>>);

impl DroppedList {
    pub fn add(&self, dropped: Dropped) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(dropped);
    }

    /// All handles that were dropped since the last call.
    pub fn take(&self) -> Vec<Dropped> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn is_same(&self, other: &DroppedList) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
