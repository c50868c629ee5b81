//! The threads that wait for restored blocks.

use std::time::Instant;

use crate::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Threads that wait for restored blocks, until those have arrived or the restore is over.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    lock: Mutex<()>,
    changed: Condvar,
}

impl Waiters {
    fn lock(&self) -> MutexGuard<'_, ()> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the threads to check again.
    pub fn wake(&self) {
        drop(self.lock());
        self.changed.notify_all();
    }

    /// Waits until a condition holds or the deadline passes.
    pub fn wait(&self, deadline: Instant, holds: impl Fn() -> bool) {
        let mut lock = self.lock();
        while !holds() {
            let Some(left) = deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) else {
                return;
            };
            lock = self.changed.wait_timeout(lock, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
