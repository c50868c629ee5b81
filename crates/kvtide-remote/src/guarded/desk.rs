//! The gate of a store as many threads use it: a lock, a clock, and somebody to tell of events.
//!
//! A permit is given back however its operation ends. Where its caller's deadline ends it, that is a failure of the store if the store
//! had time to answer and has answered nothing of the call.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use super::Watcher;
use crate::error::Result;
use crate::fault::{Fault, FaultKind};
use crate::gate::{Gate, GateOptions, Outcome, Permit, Refusal};
use crate::health::{Event, Health};

/// Who waits less than that learns nothing about a store.
const PATIENCE_MIN: Duration = Duration::from_millis(10);

/// The gate of a store.
pub(super) struct Desk {
    gate: Mutex<Gate>,
    start: Instant,
    settled: Notify,
    watcher: Option<Watcher>,
}

impl Desk {
    pub(super) fn new(options: GateOptions, watcher: Option<Watcher>) -> Result<Self> {
        Ok(Desk { gate: Mutex::new(Gate::new(options)?), start: Instant::now(), settled: Notify::new(), watcher })
    }

    fn gate(&self) -> MutexGuard<'_, Gate> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends when something has been settled since this call.
    pub(super) fn settled(&self) -> Notified<'_> {
        self.settled.notified()
    }

    pub(super) fn admit(&self, bytes: u64) -> Result<Admitted<'_>, Refusal> {
        let permit = self.gate().admit(self.start.elapsed(), bytes)?;
        Ok(Admitted { desk: self, permit: Some(permit), begun: Instant::now(), answered: None })
    }

    fn settle(&self, permit: Permit, outcome: Outcome) {
        let has_events = {
            let mut gate = self.gate();
            let before = gate.events_made();
            gate.settle(permit, outcome, self.start.elapsed());
            gate.events_made() > before
        };
        self.settled.notify_waiters();
        if has_events && let Some(watcher) = &self.watcher {
            watcher();
        }
    }

    /// A failure outside of any operation: the next one is an operation that fails.
    pub(super) fn failed(&self, fault: Fault) {
        if let Ok(mut admitted) = self.admit(0)
            && let Some(permit) = admitted.permit.take()
        {
            self.settle(permit, Outcome::Failed(fault));
        }
    }

    pub(super) fn health(&self) -> Health {
        self.gate().health().clone()
    }

    pub(super) fn unavailable_for(&self) -> Option<Duration> {
        self.gate().unavailable_for(self.start.elapsed())
    }

    pub(super) fn next_event(&self) -> Option<Event> {
        self.gate().next_event()
    }
}

/// An operation that was let through.
pub(super) struct Admitted<'a> {
    desk: &'a Desk,
    permit: Option<Permit>,
    begun: Instant,
    /// Whether anything of the same call was answered.
    answered: Option<&'a AtomicBool>,
}

impl<'a> Admitted<'a> {
    /// Says where it stands whether the store has answered anything of the call.
    pub(super) fn of_call(mut self, answered: &'a AtomicBool) -> Self {
        self.answered = Some(answered);
        self
    }

    pub(super) fn settle(mut self, outcome: Outcome) {
        if let Some(permit) = self.permit.take() {
            self.desk.settle(permit, outcome);
        }
    }
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        let Some(permit) = self.permit.take() else { return };
        let is_answering = self.answered.is_some_and(|answered| answered.load(Ordering::Relaxed));
        let outcome = if is_answering || self.begun.elapsed() < PATIENCE_MIN {
            Outcome::Abandoned
        } else {
            Outcome::Failed(Fault::new(FaultKind::TimedOut, "no answer before the deadline"))
        };
        self.desk.settle(permit, outcome);
    }
}
