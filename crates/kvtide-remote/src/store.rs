//! What a store does: four calls for many keys each, none of which fails.
//!
//! A value that is not there, comes too late, is too long or cannot be reached is a miss. A caller that wants to know why looks at the
//! store's health; a caller that wants pages goes on without.

use std::time::{Duration, Instant};

/// A store of values that never change under keys that say all of what they are.
pub trait Store: Send + Sync + std::fmt::Debug {
    /// The values of keys, in their order: nothing where there is none, where it is empty or longer than `bytes_max`, or where it cannot
    /// be had before the deadline.
    fn get_many(&self, keys: &[String], bytes_max: usize, deadline: Instant) -> Vec<Option<Vec<u8>>>;

    /// Whether there are values of keys, in their order, as far as that is known before the deadline.
    fn has_many(&self, keys: &[String], deadline: Instant) -> Vec<bool>;

    /// Adds values, unless they are there. Answers how many of them are certainly there now.
    fn put_many(&self, entries: &[(String, &[u8])], deadline: Instant) -> usize;

    /// For how long it is not asked yet, unless it is available, as far as is known: what is made for it meanwhile is made for nothing.
    /// Zero where a small question would find out whether it is there again.
    fn unavailable_for(&self) -> Option<Duration> {
        None
    }

    /// Removes values that were found to be damaged, as far as that can be done before the deadline.
    fn remove_many(&self, keys: &[String], deadline: Instant);
}

impl<S: Store + ?Sized> Store for std::sync::Arc<S> {
    fn get_many(&self, keys: &[String], bytes_max: usize, deadline: Instant) -> Vec<Option<Vec<u8>>> {
        (**self).get_many(keys, bytes_max, deadline)
    }

    fn has_many(&self, keys: &[String], deadline: Instant) -> Vec<bool> {
        (**self).has_many(keys, deadline)
    }

    fn put_many(&self, entries: &[(String, &[u8])], deadline: Instant) -> usize {
        (**self).put_many(entries, deadline)
    }

    fn unavailable_for(&self) -> Option<Duration> {
        (**self).unavailable_for()
    }

    fn remove_many(&self, keys: &[String], deadline: Instant) {
        (**self).remove_many(keys, deadline);
    }
}
