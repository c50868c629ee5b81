//! Runs state machines whose calls the caller makes, for a store that this crate cannot call. The gate and the retries
//! are the same as for other stores.
//!
//! ```text
//! Driver:  advance -> Call { permit }  --- the caller calls its store ---> answer(permit) | failed(permit, fault) | miss
//!                  -> Pause, Work, Cache, Done                             then the next step
//! ```
//!
//! A machine has no I/O and no clock: the caller keeps the deadlines, and reports a call whose deadline passed as a
//! miss. An attempt that ends later still settles its permit, so that the gate counts it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kvtide_files::Result;

use crate::fault::Fault;
use crate::gate::{Answered, Outcome, Permit, Refusal};
use crate::health::{Event, Health};
use crate::policy::{Clock, Desk, GuardOptions, jitter};

/// A call of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// Asks which keys exist.
    Has(Vec<String>),
    /// Asks for values, each of at most `bytes_max` bytes.
    Get {
        /// The keys, in the prompt's order.
        keys: Vec<String>,
        /// The most bytes of one value.
        bytes_max: usize,
    },
    /// Adds entries.
    Put(Vec<(String, Vec<u8>)>),
    /// Removes damaged entries.
    Remove(Vec<String>),
}

impl Call {
    /// Returns the most bytes in flight.
    fn bytes(&self) -> u64 {
        match self {
            Call::Has(keys) | Call::Remove(keys) => keys.len() as u64,
            Call::Get { keys, bytes_max } => (keys.len() as u64).saturating_mul(*bytes_max as u64),
            Call::Put(entries) => entries.iter().map(|(_, value)| value.len() as u64).sum(),
        }
    }
}

/// The next requirement of a machine.
#[derive(Debug)]
pub enum Need {
    /// None: the machine has ended.
    Done,
    /// The cache's thread.
    Cache,
    /// Slow work, on another thread than the cache's.
    Work,
    /// An answer of the store.
    Call(Call),
    /// A pause.
    Pause(Duration),
}

/// The result of a call.
#[derive(Clone, Copy, Debug)]
pub enum Answer<'a> {
    /// No answer before the deadline.
    Miss,
    /// For each key, true if it exists.
    Has(&'a [bool]),
    /// The value of each key.
    Values(&'a [Option<&'a [u8]>]),
    /// The number of entries that certainly exist now.
    Stored(usize),
    /// The entries were removed.
    Done,
}

impl Answer<'_> {
    fn answered(&self, bytes_out: u64) -> Answered {
        match self {
            Answer::Values(values) => {
                let found = values.iter().flatten();
                let (hits, bytes_in) =
                    found.fold((0, 0), |(hits, bytes), value| (hits + 1, bytes + value.len() as u64));
                Answered { hits, misses: values.len() as u64 - hits, bytes_in, ..Answered::default() }
            }
            _ => Answered { bytes_out, ..Answered::default() },
        }
    }
}

/// A state machine that moves blocks between a cache and stores.
pub trait Machine: Send {
    /// Returns the next requirement. A call must be answered before the next one.
    fn advance(&mut self) -> Need;

    /// Takes the answer to the last call.
    fn answer(&mut self, answer: Answer<'_>);

    /// Works, and blocks its thread meanwhile.
    fn work(&mut self);

    /// Returns the timeout of its calls, if it sets one.
    fn patience(&self) -> Option<Duration> {
        None
    }
}

/// The gate of a store that the caller calls.
#[derive(Debug)]
pub struct CallerGate {
    desk: Desk,
    options: GuardOptions,
    /// True if the store can remove entries.
    can_remove: bool,
}

impl CallerGate {
    /// Creates an open gate.
    pub fn new(options: GuardOptions, can_remove: bool) -> Result<Self> {
        CallerGate::with_clock(options, can_remove, Arc::new(Instant::now()))
    }

    /// As [`CallerGate::new`], with another clock than that of this machine.
    pub fn with_clock(options: GuardOptions, can_remove: bool, clock: Arc<dyn Clock>) -> Result<Self> {
        Ok(CallerGate { desk: Desk::new(options.gate, clock)?, options, can_remove })
    }

    pub(crate) fn can_remove(&self) -> bool {
        self.can_remove
    }

    /// Returns the timeout of one attempt.
    #[must_use]
    pub fn attempt_timeout(&self) -> Duration {
        self.options.attempt_timeout
    }

    /// Settles an attempt.
    pub fn settle(&self, permit: Permit, outcome: Outcome) {
        self.desk.settle(permit, outcome);
    }

    pub(crate) fn health(&self) -> Health {
        self.desk.health()
    }

    pub(crate) fn unavailable_for(&self) -> Option<Duration> {
        self.desk.unavailable_for()
    }

    pub(crate) fn event_behind(&self, seen: &mut u64) -> Option<Event> {
        self.desk.event_behind(seen)
    }
}

/// The next step for the caller of a [`Driver`].
#[derive(Debug)]
pub enum Step {
    /// None: the machine has ended.
    Done,
    /// Run the machine's step on its cache's thread, then call `advance`.
    Cache,
    /// Call `work`, then `advance`.
    Work,
    /// Call the store, and answer with the permit.
    Call {
        /// The call; `None` to repeat the last one.
        call: Option<Call>,
        /// The permit of this attempt.
        permit: Permit,
    },
    /// Wait, then call `advance`.
    Pause(Duration),
}

/// A machine and the attempts of its calls.
#[derive(Debug)]
pub struct Driver<M> {
    /// The machine.
    pub machine: M,
    gate: Option<Arc<CallerGate>>,
    /// The call in progress; the first step with a permit hands it out.
    attempting: Option<Attempting>,
}

#[derive(Debug)]
struct Attempting {
    call: Option<Call>,
    /// The most bytes in flight, and the bytes of values to write.
    bytes: u64,
    bytes_out: u64,
    failures: u32,
    permit: Option<Permit>,
}

impl<M: Machine> Driver<M> {
    /// Drives a machine. Without a gate, every call is a miss.
    pub fn new(machine: M, gate: Option<Arc<CallerGate>>) -> Self {
        Driver { machine, gate, attempting: None }
    }

    /// Returns the next step.
    pub fn advance(&mut self) -> Step {
        loop {
            if let Some(step) = self.attempt() {
                return step;
            }
            match self.machine.advance() {
                Need::Done => return Step::Done,
                Need::Cache => return Step::Cache,
                Need::Work => return Step::Work,
                Need::Pause(pause) => return Step::Pause(pause),
                Need::Call(call) => {
                    let bytes = call.bytes();
                    let bytes_out = if let Call::Put(_) = call { bytes } else { 0 };
                    self.attempting =
                        Some(Attempting { call: Some(call), bytes, bytes_out, failures: 0, permit: None });
                }
            }
        }
    }

    /// Begins an attempt, if there is a call.
    fn attempt(&mut self) -> Option<Step> {
        let attempting = self.attempting.as_mut()?;
        match self.gate.as_ref().map(|gate| gate.desk.admit(attempting.bytes)) {
            Some(Ok(permit)) => {
                attempting.permit = Some(permit);
                Some(Step::Call { call: attempting.call.take(), permit })
            }
            Some(Err(Refusal::Busy)) => self.gate.as_ref().map(|gate| Step::Pause(jitter(gate.options.pause))),
            _ => {
                self.attempting = None;
                self.machine.answer(Answer::Miss);
                None
            }
        }
    }

    /// Takes the answer to an attempt. Returns the next step, unless the call was given up before; then only the gate
    /// counts the answer.
    pub fn answer(&mut self, permit: Permit, answer: Answer<'_>) -> Option<Step> {
        let bytes_out = self.open(permit).map_or(0, |attempting| attempting.bytes_out);
        self.settle(permit, Outcome::Answered(answer.answered(bytes_out)));
        self.open(permit)?;
        self.attempting = None;
        self.machine.answer(answer);
        Some(self.advance())
    }

    /// Counts a failed attempt. Returns the next step, unless the call was given up before.
    pub fn failed(&mut self, permit: Permit, fault: Fault) -> Option<Step> {
        let failures = self.open(permit).map_or(0, |attempting| attempting.failures) + 1;
        let pause = self.gate.as_ref().and_then(|gate| gate.options.pause_after(failures, &fault));
        self.settle(permit, Outcome::Failed(fault));
        let attempting = self.open(permit)?;
        (attempting.permit, attempting.failures) = (None, failures);
        Some(pause.map_or_else(|| self.miss(), Step::Pause))
    }

    /// Ends an attempt without counting for or against the store. Gives the call up, unless that was done before.
    pub fn abandon(&mut self, permit: Permit) -> Option<Step> {
        self.settle(permit, Outcome::Abandoned);
        self.open(permit)?;
        Some(self.miss())
    }

    /// Gives the call up, because its deadline passed. Its attempt is settled when it ends.
    pub fn miss(&mut self) -> Step {
        if self.attempting.take().is_some() {
            self.machine.answer(Answer::Miss);
        }
        self.advance()
    }

    fn open(&mut self, permit: Permit) -> Option<&mut Attempting> {
        self.attempting.as_mut().filter(|attempting| attempting.permit == Some(permit))
    }

    fn settle(&self, permit: Permit, outcome: Outcome) {
        if let Some(gate) = &self.gate {
            gate.settle(permit, outcome);
        }
    }
}
