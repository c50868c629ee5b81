//! The health of a store: counts, its state, and changes of its state.

use crate::fault::{Fault, FaultKind};

/// The state of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// The store is asked.
    #[default]
    Available,
    /// The store is not asked for a while: every key is a miss at once.
    Unavailable,
    /// One call probes the store; all others are misses.
    Probing,
}

/// The state of a store, and its counts since it was created.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// The state.
    pub state: State,
    /// Values that were found.
    pub hits: u64,
    /// Values that do not exist according to the store, or that are too long.
    pub misses: u64,
    /// Operations that were not begun, because the store is unavailable or too much is in flight.
    pub refused: u64,
    /// Operations that were given up when the caller's deadline passed, without a fault of the store.
    pub abandoned: u64,
    /// Bytes of values that were read.
    pub bytes_in: u64,
    /// Bytes of values that were written.
    pub bytes_out: u64,
    /// Operations in flight.
    pub operations_in_flight: u32,
    /// The most bytes that they may take.
    pub bytes_in_flight: u64,
    /// The last fault, described without secrets.
    pub last_fault: Option<Fault>,
    pub(crate) failures: [u64; FaultKind::ALL.len()],
}

impl Health {
    /// Returns the number of faults of a kind.
    #[must_use]
    pub fn failures(&self, kind: FaultKind) -> u64 {
        self.failures[kind as usize]
    }

    pub(crate) fn count_fault(&mut self, fault: &Fault) {
        self.failures[fault.kind as usize] += 1;
        self.last_fault = Some(fault.clone());
    }
}

/// A change of a store's reachability.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The store is unreachable, for this reason, and is no longer asked.
    Unavailable(Fault),
    /// The store is reachable again.
    Available,
}
