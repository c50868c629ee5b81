//! How a store has done so far: numbers, its state, and what changed.

use crate::fault::{Fault, FaultKind};

/// Whether a store is asked at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// It is.
    #[default]
    Available,
    /// It is not, for a while: everything is a miss at once.
    Unavailable,
    /// One call asks whether it is there again; all others miss.
    Probing,
}

/// What a store has done, counted since it was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Whether it is asked.
    pub state: State,
    /// Values that were found.
    pub hits: u64,
    /// Values that the store said are not there, or are too long.
    pub misses: u64,
    /// Operations that were not begun: the store is unavailable, or too much is in flight.
    pub refused: u64,
    /// Operations that were given up when their caller's time was over, without a fault of the store.
    pub abandoned: u64,
    /// Bytes of values that came in.
    pub bytes_in: u64,
    /// Bytes of values that went out.
    pub bytes_out: u64,
    /// Operations in flight.
    pub operations_in_flight: u32,
    /// Bytes that they may take at most.
    pub bytes_in_flight: u64,
    /// The last fault, in words without secrets.
    pub last_fault: Option<Fault>,
    pub(crate) failures: [u64; FaultKind::ALL.len()],
}

impl Health {
    /// Faults of a sort.
    #[must_use]
    pub fn failures(&self, kind: FaultKind) -> u64 {
        self.failures[kind as usize]
    }

    pub(crate) fn count_fault(&mut self, fault: &Fault) {
        self.failures[fault.kind as usize] += 1;
        self.last_fault = Some(fault.clone());
    }
}

/// A change that somebody may want to hear of: one for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The store is not asked any more, and why.
    Unavailable(Fault),
    /// It answers again.
    Available,
}
