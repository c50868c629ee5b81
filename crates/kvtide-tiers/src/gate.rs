//! The breaker of a store, and its limits in flight. No clock, no thread, no I/O: the caller passes the time.
//!
//! ```text
//! available --- failures_max failures in a row, or a permanent one ---> unavailable until its back-off is over
//! unavailable --- the first operation afterwards --------------------> probing: one operation, all others are refused
//! probing --- it is answered ---> available         --- it fails ---> unavailable, twice as long, up to backoff_max
//! ```
//!
//! Operations that were in flight together and fail together count as one failure in a row, because a connection that
//! breaks fails all of its operations. A permanent fault has the longest back-off at once. Every change between
//! available and unavailable is one event; a probe that fails is none. Operations in flight never exceed the limits.
//! All calls are O(1).

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use kvtide_files::{Error, Result};

use crate::fault::Fault;
use crate::health::{Event, Health, State};

/// The most events to keep; the oldest ones are dropped.
const EVENTS_MAX: usize = 1024;

/// The limits of a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateOptions {
    /// The most operations in flight.
    pub operations_max: u32,
    /// The most bytes in flight.
    pub bytes_max: u64,
    /// The number of failures in a row that makes a store unavailable.
    pub failures_max: u32,
    /// The first back-off.
    pub backoff_min: Duration,
    /// The longest back-off.
    pub backoff_max: Duration,
}

impl Default for GateOptions {
    fn default() -> Self {
        GateOptions {
            operations_max: 32,
            bytes_max: 256 << 20,
            failures_max: 3,
            backoff_min: Duration::from_millis(100),
            backoff_max: Duration::from_secs(30),
        }
    }
}

/// The number of an admitted operation, which must be settled once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Permit(pub u64);

/// The reason why an operation is not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The store is unavailable: a miss.
    Unavailable,
    /// Another operation is probing the store: a miss, or wait until that operation is settled.
    Probing,
    /// Too much is in flight: wait until an operation is settled.
    Busy,
    /// The operation needs more bytes than may ever be in flight: a miss.
    TooLarge,
}

/// The outcome of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The store answered.
    Answered(Answered),
    /// The store did not answer, or its answer cannot be used.
    Failed(Fault),
    /// The caller gave up too early to count for or against the store.
    Abandoned,
}

/// The counts of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answered {
    /// Values that were found.
    pub hits: u64,
    /// Values that were not found.
    pub misses: u64,
    /// Bytes of values that were read.
    pub bytes_in: u64,
    /// Bytes of values that were written.
    pub bytes_out: u64,
    /// A fault of some of the values. It is counted, and the store counts as available.
    pub fault: Option<Fault>,
}

/// An operation in flight.
#[derive(Clone, Copy, Debug)]
struct Open {
    bytes: u64,
    /// The number of failures that had been counted when the operation began.
    epoch: u64,
    is_probe: bool,
}

/// Decides whether a store is asked.
#[derive(Debug)]
pub struct Gate {
    options: GateOptions,
    health: Health,
    open: HashMap<u64, Open>,
    made: u64,
    in_a_row: u32,
    epoch: u64,
    backoff: Duration,
    /// The time until which the store is unavailable.
    until: Duration,
    events: VecDeque<Event>,
    events_made: u64,
    /// The number of events that [`Gate::next_event`] has returned or skipped.
    events_read: u64,
}

impl Gate {
    /// Creates an open gate. Every limit must be at least one, and `backoff_max` at least `backoff_min`.
    pub fn new(options: GateOptions) -> Result<Self> {
        let GateOptions { operations_max, bytes_max, failures_max, backoff_min, backoff_max } = options;
        let counts = [
            ("operationsMax", u64::from(operations_max)),
            ("bytesMax", bytes_max),
            ("failuresMax", u64::from(failures_max)),
        ];
        if let Some((argument, _)) = counts.into_iter().find(|(_, count)| *count == 0) {
            return Err(Error::argument(argument, 0u64, "at least 1"));
        }
        if backoff_min.is_zero() {
            return Err(Error::argument("backoffMin", 0u64, "more than 0"));
        }
        if backoff_max < backoff_min {
            return Err(Error::argument("backoffMax", format!("{backoff_max:?}"), "at least backoffMin"));
        }
        Ok(Gate {
            options,
            health: Health::default(),
            open: HashMap::new(),
            made: 0,
            in_a_row: 0,
            epoch: 0,
            backoff: backoff_min,
            until: Duration::ZERO,
            events: VecDeque::new(),
            events_made: 0,
            events_read: 0,
        })
    }

    /// Admits an operation that may take this many bytes, or returns why not. `now` is the time since a fixed,
    /// arbitrary epoch.
    pub fn admit(&mut self, now: Duration, bytes: u64) -> Result<Permit, Refusal> {
        let is_probe = match self.health.state {
            State::Available => false,
            State::Unavailable if now >= self.until => true,
            State::Unavailable => return Err(self.refuse(Refusal::Unavailable)),
            State::Probing => return Err(Refusal::Probing),
        };
        if bytes > self.options.bytes_max {
            return Err(self.refuse(Refusal::TooLarge));
        }
        if self.health.operations_in_flight >= self.options.operations_max
            || self.health.bytes_in_flight > self.options.bytes_max - bytes
        {
            return Err(Refusal::Busy);
        }
        if is_probe {
            self.health.state = State::Probing;
        }
        let permit = Permit(self.made);
        self.made += 1;
        self.health.operations_in_flight += 1;
        self.health.bytes_in_flight += bytes;
        self.open.insert(permit.0, Open { bytes, epoch: self.epoch, is_probe });
        Ok(permit)
    }

    fn refuse(&mut self, refusal: Refusal) -> Refusal {
        self.health.refused += 1;
        refusal
    }

    /// Counts the outcome of an operation. A permit that was settled before is ignored.
    pub fn settle(&mut self, permit: Permit, outcome: Outcome, now: Duration) {
        let Some(open) = self.open.remove(&permit.0) else { return };
        self.health.operations_in_flight -= 1;
        self.health.bytes_in_flight -= open.bytes;
        match outcome {
            Outcome::Answered(answered) => self.answered(answered, open),
            Outcome::Failed(fault) => {
                self.health.count_fault(&fault);
                if fault.kind.is_of_store() {
                    self.failed(fault, open, now);
                } else {
                    // A "full" reply proves that the store is up.
                    self.answered(Answered::default(), open);
                }
            }
            Outcome::Abandoned => {
                self.health.abandoned += 1;
                if open.is_probe {
                    // The next operation is the probe.
                    self.health.state = State::Unavailable;
                }
            }
        }
    }

    fn answered(&mut self, answered: Answered, open: Open) {
        let Answered { hits, misses, bytes_in, bytes_out, fault } = answered;
        let health = &mut self.health;
        health.hits = health.hits.saturating_add(hits);
        health.misses = health.misses.saturating_add(misses);
        health.bytes_in = health.bytes_in.saturating_add(bytes_in);
        health.bytes_out = health.bytes_out.saturating_add(bytes_out);
        if let Some(fault) = &fault {
            health.count_fault(fault);
        }
        match health.state {
            State::Available => self.in_a_row = 0,
            State::Probing if open.is_probe => {
                health.state = State::Available;
                self.in_a_row = 0;
                self.backoff = self.options.backoff_min;
                self.tell(Event::Available);
            }
            // The answer is to an operation from before the probe, so it does not show that the store is reachable now.
            State::Probing | State::Unavailable => {}
        }
    }

    fn failed(&mut self, fault: Fault, open: Open, now: Duration) {
        let GateOptions { failures_max, backoff_max, .. } = self.options;
        let is_permanent = fault.kind.is_permanent();
        match self.health.state {
            State::Available => {
                // Operations that were in flight at the last failure are part of it.
                if open.epoch == self.epoch {
                    self.epoch += 1;
                    self.in_a_row += 1;
                }
                if self.in_a_row >= failures_max || is_permanent {
                    self.backoff = if is_permanent { backoff_max } else { self.options.backoff_min };
                    self.close(now);
                    self.tell(Event::Unavailable(fault));
                }
            }
            State::Probing if open.is_probe => {
                self.backoff = if is_permanent { backoff_max } else { self.backoff.saturating_mul(2).min(backoff_max) };
                self.close(now);
            }
            State::Probing | State::Unavailable => {}
        }
    }

    fn close(&mut self, now: Duration) {
        self.health.state = State::Unavailable;
        self.epoch += 1;
        self.until = now.saturating_add(self.backoff);
    }

    fn tell(&mut self, event: Event) {
        if self.events.len() == EVENTS_MAX {
            self.events.pop_front();
        }
        self.events.push_back(event);
        self.events_made += 1;
    }

    /// Returns the number of events so far, read or unread.
    #[must_use]
    pub fn events_made(&self) -> u64 {
        self.events_made
    }

    /// Returns the store's health so far.
    #[must_use]
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// Returns the next unread event.
    pub fn next_event(&mut self) -> Option<Event> {
        let mut seen = self.events_read;
        let event = self.event_behind(&mut seen);
        self.events_read = seen;
        event
    }

    /// Returns the first event behind the `seen` ones of a reader, and counts it as seen. A store has any number of
    /// readers, each with a count of its own. Events that are no longer kept are skipped.
    pub fn event_behind(&self, seen: &mut u64) -> Option<Event> {
        let first = self.events_made - self.events.len() as u64;
        let next = (*seen).max(first);
        let event = self.events.get((next - first) as usize)?;
        *seen = next + 1;
        Some(event.clone())
    }

    /// Returns the count with which a new reader begins: at the last event if the store has been unavailable since.
    #[must_use]
    pub fn events_begin(&self) -> u64 {
        let is_away = matches!(self.events.back(), Some(Event::Unavailable(_)));
        self.events_made - u64::from(is_away)
    }

    /// Returns the time until an operation may be admitted; `None` if the store is available, zero if the next
    /// operation would be the probe.
    #[must_use]
    pub fn unavailable_for(&self, now: Duration) -> Option<Duration> {
        match self.health.state {
            State::Available => None,
            State::Unavailable => Some(self.until.saturating_sub(now)),
            // The result of the probe is not known yet.
            State::Probing => Some(self.options.backoff_min),
        }
    }

    /// Returns the time from which the next operation is admitted as a probe, if the store is unavailable.
    #[must_use]
    pub fn unavailable_until(&self) -> Option<Duration> {
        (self.health.state == State::Unavailable).then_some(self.until)
    }
}
