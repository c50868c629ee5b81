//! Whether a store is asked, and how much at a time. No clock, no thread, no I/O: whoever uses it says what time it is.
//!
//! ```text
//! available --- failures_max failures in a row, or one that is permanent ---> unavailable until its back-off is over
//! unavailable --- the first that asks afterwards -------------------------> probing: one operation, all others are refused
//! probing --- it is answered ---> available         --- it fails ---> unavailable, twice as long, up to backoff_max
//! ```
//!
//! Operations that were in flight together and fail together are one failure in a row: a connection that breaks takes all of its
//! operations with it. A permanent fault has the longest back-off at once. Every change between available and unavailable is one event,
//! and a probe that fails is none. What is in flight never exceeds the limits. All calls are O(1).

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::fault::Fault;
use crate::health::{Event, Health, State};

/// Events that nobody fetched: the oldest ones are dropped.
const EVENTS_MAX: usize = 1024;

/// What a gate lets through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateOptions {
    /// Operations in flight at most.
    pub operations_max: u32,
    /// Bytes in flight at most.
    pub bytes_max: u64,
    /// Failures in a row that make a store unavailable.
    pub failures_max: u32,
    /// For how long, the first time.
    pub backoff_min: Duration,
    /// For how long at most.
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

/// The number of an operation that was let through: to be settled once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Permit(pub u64);

/// Why an operation is not let through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The store is unavailable: a miss.
    Unavailable,
    /// Another operation asks whether the store is there again: a miss, or wait until that one is settled.
    Probing,
    /// Too much is in flight: wait until something is settled.
    Busy,
    /// More bytes than may ever be in flight: a miss.
    TooLarge,
}

/// What became of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The store answered.
    Answered(Answered),
    /// It did not, or nothing that can be used.
    Failed(Fault),
    /// Its caller gave up before anything can be said of the store.
    Abandoned,
}

/// What an answer held.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answered {
    /// Values that were found.
    pub hits: u64,
    /// Values that were not.
    pub misses: u64,
    /// Bytes of values that came in.
    pub bytes_in: u64,
    /// Bytes of values that went out.
    pub bytes_out: u64,
    /// What went wrong with some of them. It is counted, and the store counts as available.
    pub fault: Option<Fault>,
}

/// An operation in flight.
#[derive(Clone, Copy, Debug)]
struct Open {
    bytes: u64,
    /// Failures that had been counted when it began.
    epoch: u64,
    is_probe: bool,
}

/// Whether a store is asked.
#[derive(Debug)]
pub struct Gate {
    options: GateOptions,
    health: Health,
    open: HashMap<u64, Open>,
    made: u64,
    in_a_row: u32,
    epoch: u64,
    backoff: Duration,
    /// Until when it is unavailable.
    until: Duration,
    events: VecDeque<Event>,
    events_made: u64,
}

impl Gate {
    /// A gate that is open. Every limit must be at least one, and the back-offs in order.
    pub fn new(options: GateOptions) -> Result<Self> {
        let GateOptions { operations_max, bytes_max, failures_max, backoff_min, backoff_max } = options;
        let counts = [
            ("operationsMax", u64::from(operations_max)),
            ("bytesMax", bytes_max),
            ("failuresMax", u64::from(failures_max)),
        ];
        if let Some((argument, _)) = counts.into_iter().find(|(_, count)| *count == 0) {
            return Err(Error::argument(argument, 0, "at least 1"));
        }
        if backoff_min.is_zero() {
            return Err(Error::argument("backoffMin", 0, "more than 0"));
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
        })
    }

    /// Lets an operation through that may take so many bytes, or says why not. `now` is the time since any moment, always the same.
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

    /// Takes note of what became of an operation. A permit that was settled before is passed over.
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
                    // Who says that there is no room is there.
                    self.answered(Answered::default(), open);
                }
            }
            Outcome::Abandoned => {
                self.health.abandoned += 1;
                if open.is_probe {
                    // The next one asks.
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
            // An answer from before: the probe says whether it is there now.
            State::Probing | State::Unavailable => {}
        }
    }

    fn failed(&mut self, fault: Fault, open: Open, now: Duration) {
        let GateOptions { failures_max, backoff_max, .. } = self.options;
        let is_permanent = fault.kind.is_permanent();
        match self.health.state {
            State::Available => {
                // Those that were in flight at the last failure are part of it.
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

    /// Events so far, whether they were fetched or not.
    #[must_use]
    pub fn events_made(&self) -> u64 {
        self.events_made
    }

    /// What it has seen so far.
    #[must_use]
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// The next change that was not fetched yet.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// For how long nothing is let through yet, unless it is available. Zero where the next operation would find out whether it is.
    #[must_use]
    pub fn unavailable_for(&self, now: Duration) -> Option<Duration> {
        match self.health.state {
            State::Available => None,
            State::Unavailable => Some(self.until.saturating_sub(now)),
            // Whoever asks will know.
            State::Probing => Some(self.options.backoff_min),
        }
    }

    /// When the next operation is let through to see whether the store is there again, if it is unavailable.
    #[must_use]
    pub fn unavailable_until(&self) -> Option<Duration> {
        (self.health.state == State::Unavailable).then_some(self.until)
    }
}
