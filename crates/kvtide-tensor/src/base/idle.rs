//! The idle workers of a pool. A call reserves some of them and never waits for one.

use crate::base::sync::{AtomicUsize, Ordering};

/// The number of idle workers.
pub(crate) struct Idle(AtomicUsize);

impl Idle {
    /// All workers are idle at first.
    pub fn new(workers: usize) -> Self {
        Idle(AtomicUsize::new(workers))
    }

    /// Reserves at most `wanted` workers, as far as there are idle ones.
    pub fn reserve(&self, wanted: usize) -> Reserved<'_> {
        let mut count = 0;
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, |idle| {
            count = idle.min(wanted);
            Some(idle - count)
        });
        Reserved { idle: self, count }
    }
}

/// Workers that are reserved for one call, until this is dropped.
pub(crate) struct Reserved<'a> {
    idle: &'a Idle,
    pub count: usize,
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.idle.0.fetch_add(self.count, Ordering::AcqRel);
    }
}
