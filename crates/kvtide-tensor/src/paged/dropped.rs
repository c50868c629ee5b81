//! What was dropped and is taken back at the cache's next call, be it a change or a read.
//!
//! A snapshot, a prefix and a step can outlive a borrow of their cache, and be dropped anywhere. Then they leave their number in a
//! list that they share with the cache.

use std::sync::{Arc, Mutex, PoisonError};

use kvtide_core::paged::WritePlan;

/// Something that has ended.
#[derive(Debug)]
pub(super) enum Dropped {
    /// Blocks that were held under this number.
    Hold(u64),
    /// A step that was not committed.
    Step(Arc<WritePlan>),
    /// A sequence.
    Sequence(u64),
}

/// The list of a cache. Whoever shares it belongs to that cache.
#[derive(Clone, Debug, Default)]
pub(super) struct DroppedList(Arc<Mutex<Vec<Dropped>>>);

impl DroppedList {
    pub fn add(&self, dropped: Dropped) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(dropped);
    }

    /// Everything that ended since the last call.
    pub fn take(&self) -> Vec<Dropped> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn is_same(&self, other: &DroppedList) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
