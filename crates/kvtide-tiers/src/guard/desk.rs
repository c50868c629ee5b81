//! The desk of a store for async tasks: tasks wait until an operation settles, and a watcher is told of events.
//!
//! A permit is settled however its operation ends. If the caller's deadline ends it, it counts as a failure of the
//! store, provided that the store had time to answer and has answered no part of the call.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kvtide_files::Result;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::fault::{Fault, FaultKind};
use crate::gate::{GateOptions, Outcome, Permit, Refusal};
use crate::policy::Desk;

/// Shorter waits are not counted as failures.
const PATIENCE_MIN: Duration = Duration::from_millis(10);

/// A callback for unread events.
pub type Watcher = Box<dyn Fn() + Send + Sync>;

/// The desk of a store.
pub(super) struct WatchedDesk {
    pub desk: Desk,
    settled: Notify,
    watcher: Option<Watcher>,
}

impl WatchedDesk {
    pub(super) fn new(options: GateOptions, watcher: Option<Watcher>) -> Result<Self> {
        let desk = Desk::new(options, Arc::new(Instant::now()))?;
        Ok(WatchedDesk { desk, settled: Notify::new(), watcher })
    }

    /// Resolves when an operation has been settled since this call.
    pub(super) fn settled(&self) -> Notified<'_> {
        self.settled.notified()
    }

    pub(super) fn admit(&self, bytes: u64) -> Result<Admitted<'_>, Refusal> {
        let permit = self.desk.admit(bytes)?;
        Ok(Admitted { desk: self, permit: Some(permit), begun: Instant::now(), answered: None })
    }

    fn settle(&self, permit: Permit, outcome: Outcome) {
        let has_event = self.desk.settle(permit, outcome);
        self.settled.notify_waiters();
        if has_event && let Some(watcher) = &self.watcher {
            watcher();
        }
    }

    /// Counts a failure outside of any operation, as an operation that fails.
    pub(super) fn failed(&self, fault: Fault) {
        if let Ok(mut admitted) = self.admit(0)
            && let Some(permit) = admitted.permit.take()
        {
            self.settle(permit, Outcome::Failed(fault));
        }
    }
}

/// An admitted operation.
pub(super) struct Admitted<'a> {
    desk: &'a WatchedDesk,
    permit: Option<Permit>,
    begun: Instant,
    /// True if any part of the same call was answered.
    answered: Option<&'a AtomicBool>,
}

impl<'a> Admitted<'a> {
    /// Sets the flag that tells whether the store has answered any part of the call.
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
