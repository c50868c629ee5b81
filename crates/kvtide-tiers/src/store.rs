//! The trait that all stores implement. Its calls take many keys and never fail: a value that is missing, late, too
//! long or unreachable is a miss.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use crate::entry::StoreKey;
use crate::health::{Event, Health};

/// A store of values that never change, under keys that identify their content.
pub trait Store: Send + Sync + Debug {
    /// Returns the values of keys, in the same order; `None` for a value that is missing, empty, longer than
    /// `bytes_max`, or that does not arrive before the deadline.
    fn get(&self, keys: &[String], bytes_max: usize, deadline: Instant) -> Vec<Option<Vec<u8>>>;

    /// Returns true for each key whose value is known, before the deadline, to exist.
    fn has(&self, keys: &[String], deadline: Instant) -> Vec<bool>;

    /// Adds values that do not exist yet. Returns the number of entries that certainly exist now.
    fn put(&self, entries: &[(String, &[u8])], deadline: Instant) -> usize;

    /// Removes values that turned out to be damaged.
    fn remove(&self, keys: &[String], deadline: Instant);

    /// Returns the time until the store may be asked again, if it is unreachable: nothing is copied for it meanwhile.
    /// Zero if a probe may be sent now.
    fn unavailable_for(&self) -> Option<Duration> {
        None
    }

    /// Returns the store's health, if it is reached over the network.
    fn health(&self) -> Option<Health> {
        None
    }

    /// Returns the next unread change of its reachability.
    fn next_event(&self) -> Option<Event> {
        None
    }

    /// Returns the first change of its reachability behind the `seen` ones of a reader, and counts it as seen. Caches
    /// that share a store are readers of it, and each sees every change. By default, a store has a single reader.
    fn event_behind(&self, seen: &mut u64) -> Option<Event> {
        let event = self.next_event()?;
        *seen += 1;
        Some(event)
    }

    /// Returns the count with which a new reader begins. If the store is unreachable, the reader sees that first.
    fn events_begin(&self) -> u64 {
        0
    }

    /// Prepares the store. Called once, on the writer thread; it may take long.
    fn begin(&self) {}

    /// Returns the keys of blocks that this process evicted from the store since the last call.
    fn take_removed(&self) -> Vec<StoreKey> {
        Vec::new()
    }

    /// Returns the bytes of all entries, if the store counts them.
    fn bytes(&self) -> Option<u64> {
        None
    }
}
