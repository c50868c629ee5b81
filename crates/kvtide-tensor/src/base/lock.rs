//! Mutex helpers that ignore poisoning: the data behind these locks is consistent between calls, also after a panic in
//! another thread.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Takes a lock.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Unwraps the content of a lock.
pub(crate) fn unlocked<T>(mutex: Mutex<T>) -> T {
    mutex.into_inner().unwrap_or_else(PoisonError::into_inner)
}
