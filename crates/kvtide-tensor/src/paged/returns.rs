//! What holders of a paged cache's blocks leave behind when they are dropped: the cache takes it back at its next call, be it a
//! change or a read.
//!
//! A snapshot, a prefix and a step can outlive a borrow of their cache, and be dropped anywhere. They give their number to
//! this list, which they share with it.

use std::sync::{Arc, Mutex, PoisonError};

use kvtide_core::paged::WritePlan;

/// Something that ends.
#[derive(Debug)]
pub(crate) enum Returned {
    /// Blocks that were held under this number.
    Held(u64),
    /// A step that was not committed.
    Step(Box<WritePlan>),
    /// A sequence.
    Sequence(u64),
}

/// The list. Who has the same one belongs to the same cache.
#[derive(Clone, Debug, Default)]
pub(crate) struct Returns(Arc<Mutex<Vec<Returned>>>);

impl Returns {
    pub fn add(&self, returned: Returned) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(returned);
    }

    /// Everything that ended since the last call.
    pub fn take(&self) -> Vec<Returned> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn is_same(&self, other: &Returns) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
