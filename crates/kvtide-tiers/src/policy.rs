//! Timeouts and retries, stated once, for stores that this crate calls and for the one that the caller calls.

use std::cell::Cell;
use std::collections::hash_map::RandomState;
use std::fmt::Debug;
use std::hash::{BuildHasher, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kvtide_files::Result;

use crate::fault::Fault;
use crate::gate::{Gate, GateOptions, Outcome, Permit, Refusal};
use crate::health::{Event, Health};

/// The timeout of one call of a writer.
pub(crate) const WRITE_PATIENCE: Duration = Duration::from_secs(10);

/// The timeout of a probe, and the shortest pause before the next one.
pub(crate) const PROBE_PATIENCE: Duration = Duration::from_secs(3);
pub(crate) const PROBE_PAUSE: Duration = Duration::from_millis(10);

/// Timeouts, retries and limits for calls to a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuardOptions {
    /// The limits in flight, and the number of failures that make the store unreachable.
    pub gate: GateOptions,
    /// The most attempts for one batch.
    pub attempts_max: u32,
    /// The timeout of one attempt. The deadline of the call may end it sooner.
    pub attempt_timeout: Duration,
    /// The longest pause before the second attempt; it doubles with each one.
    pub pause: Duration,
    /// The bytes of a batch, unless a single value is longer.
    pub batch_bytes: usize,
    /// The most keys of a batch.
    pub batch_keys: usize,
}

impl Default for GuardOptions {
    fn default() -> Self {
        GuardOptions {
            gate: GateOptions::default(),
            attempts_max: 3,
            attempt_timeout: Duration::from_secs(2),
            pause: Duration::from_millis(20),
            batch_bytes: 256 << 10,
            batch_keys: 1000,
        }
    }
}

impl GuardOptions {
    /// Returns the pause after a failure: a random time up to `pause * 2^(failures - 1)`, so that callers that failed
    /// together retry at different times. `None` if a retry cannot help.
    pub(crate) fn pause_after(&self, failures: u32, fault: &Fault) -> Option<Duration> {
        let is_last = failures >= self.attempts_max || !fault.kind.is_passing();
        (!is_last).then(|| jitter(self.pause.saturating_mul(1 << failures.saturating_sub(1).min(16))))
    }
}

/// Returns a random time up to `most`.
pub(crate) fn jitter(most: Duration) -> Duration {
    thread_local!(static RANDOM: Cell<u64> = Cell::new(RandomState::new().build_hasher().finish()));
    let drawn = RANDOM.with(|random| {
        // xorshift64*; its state is never 0.
        let mut next = random.get() | 1;
        next ^= next >> 12;
        next ^= next << 25;
        next ^= next >> 27;
        random.set(next);
        next.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32
    });
    most.mul_f64(drawn as f64 / f64::from(u32::MAX)).min(most)
}

/// A clock that never goes back.
pub trait Clock: Debug + Send + Sync {
    /// Returns the time since a fixed, arbitrary epoch.
    fn elapsed(&self) -> Duration;
}

/// The time since this instant.
impl Clock for Instant {
    fn elapsed(&self) -> Duration {
        Instant::elapsed(self)
    }
}

/// A gate with a clock, shared by threads.
#[derive(Debug)]
pub(crate) struct Desk {
    gate: Mutex<Gate>,
    clock: Arc<dyn Clock>,
}

impl Desk {
    pub fn new(options: GateOptions, clock: Arc<dyn Clock>) -> Result<Self> {
        Ok(Desk { gate: Mutex::new(Gate::new(options)?), clock })
    }

    fn gate(&self) -> MutexGuard<'_, Gate> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn admit(&self, bytes: u64) -> Result<Permit, Refusal> {
        self.gate().admit(self.clock.elapsed(), bytes)
    }

    /// Settles a permit. Returns true if there is a new event.
    pub fn settle(&self, permit: Permit, outcome: Outcome) -> bool {
        let mut gate = self.gate();
        let before = gate.events_made();
        gate.settle(permit, outcome, self.clock.elapsed());
        gate.events_made() > before
    }

    pub fn health(&self) -> Health {
        self.gate().health().clone()
    }

    pub fn unavailable_for(&self) -> Option<Duration> {
        self.gate().unavailable_for(self.clock.elapsed())
    }

    #[cfg(feature = "client")]
    pub fn next_event(&self) -> Option<Event> {
        self.gate().next_event()
    }

    pub fn event_behind(&self, seen: &mut u64) -> Option<Event> {
        self.gate().event_behind(seen)
    }

    #[cfg(feature = "client")]
    pub fn events_begin(&self) -> u64 {
        self.gate().events_begin()
    }
}
