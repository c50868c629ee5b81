//! A store that others run, asked so that nobody has to wait for it: a deadline outside of everything, limits, retries, a breaker.
//!
//! ```text
//! call -> deadline -> batches, as many at a time as the gate lets through -> attempts, each with a time of its own -> backend
//! ```
//!
//! A call cuts its keys into batches (`batch`), asks for them together, and takes what has come when its deadline is there. A batch
//! that fails is tried again after a random while (`attempt`). A store that failed too often is not asked (`Gate`).
//! Calls block their thread. They may be made from any, also from one of a runtime's; panics of a client end as misses.

mod attempt;
mod batch;
mod desk;

use std::future::Future;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::runtime::Handle;

use crate::backend::{Backend, Replies};
use crate::error::{Error, Result};
use crate::fault::{Fault, FaultKind};
use crate::gate::{Answered, GateOptions, Refusal};
use crate::health::{Event, Health};
use crate::store::Store;
use attempt::Attempts;
use batch::Batches;
use desk::{Admitted, Desk};

/// Called when there is an event to fetch.
pub type Watcher = Box<dyn Fn() + Send + Sync>;

/// How a store is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuardOptions {
    /// What is in flight at most, and when the store counts as unavailable.
    pub gate: GateOptions,
    /// How often a batch is tried at most.
    pub attempts_max: u32,
    /// For how long one attempt is waited for. The deadline of the call may come sooner.
    pub attempt_timeout: Duration,
    /// The longest pause before the second attempt; it doubles with each one.
    pub pause: Duration,
    /// Bytes of a batch at most, unless a single value is longer.
    pub batch_bytes: usize,
    /// Keys of a batch at most.
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

/// A store that others run, as one that never fails.
pub struct Guarded<B> {
    backend: B,
    runtime: Handle,
    options: GuardOptions,
    desk: Desk,
}

impl<B: Backend> std::fmt::Debug for Guarded<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guarded")
            .field("backend", &self.backend)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl<B: Backend> Guarded<B> {
    /// Guards a backend. The runtime must have threads of its own, which go on while a caller waits.
    pub fn new(backend: B, options: GuardOptions, runtime: Handle) -> Result<Self> {
        Self::watched(backend, options, runtime, None)
    }

    /// The same with somebody who is called when there is an event to fetch: briefly, and from any thread.
    pub fn watched(backend: B, options: GuardOptions, runtime: Handle, watcher: Option<Watcher>) -> Result<Self> {
        if options.attempts_max == 0 {
            return Err(Error::argument("attemptsMax", 0, "at least 1"));
        }
        if options.attempt_timeout.is_zero() {
            return Err(Error::argument("attemptTimeout", 0, "more than 0"));
        }
        if options.batch_bytes == 0 || options.batch_keys == 0 {
            return Err(Error::argument("batchBytes, batchKeys", 0, "at least 1"));
        }
        let desk = Desk::new(options.gate, watcher)?;
        Ok(Guarded { backend, runtime, options, desk })
    }

    /// How the store has done so far.
    #[must_use]
    pub fn health(&self) -> Health {
        self.desk.health()
    }

    /// The next change that was not fetched yet.
    pub fn next_event(&self) -> Option<Event> {
        self.desk.next_event()
    }

    /// The backend within.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// Runs a call on this thread until it is over or its deadline is there.
    fn until(&self, deadline: Instant, call: impl Future<Output = ()> + Send) {
        let limited = async { _ = tokio::time::timeout_at(deadline.into(), call).await };
        let run = || catch_unwind(AssertUnwindSafe(|| self.runtime.block_on(limited))).is_ok();
        let went_well = if Instant::now() >= deadline {
            true
        } else if Handle::try_current().is_ok() {
            // Threads of a runtime must not wait for one.
            std::thread::scope(|scope| scope.spawn(run).join().unwrap_or(false))
        } else {
            run()
        };
        if !went_well {
            self.desk.failed(Fault::new(FaultKind::Unreachable, "the client failed, or its runtime has ended"));
        }
    }

    /// Asks for batches, and hands over what comes.
    async fn each_batch<'a, T, F>(
        &'a self,
        batches: Batches<'a>,
        call: impl Fn(Range<usize>) -> F + 'a,
        answered: impl Fn(&Range<usize>, &[T]) -> Answered + 'a,
        mut take: impl FnMut(Range<usize>, Vec<T>),
    ) where
        F: Future<Output = Result<Replies<T>, Fault>> + 'a,
    {
        let attempts = Attempts::new(&self.desk, &self.options);
        let (attempts, call, answered) = (&attempts, &call, &answered);
        let attempt = |admitted: Admitted<'a>, bytes: u64, range: Range<usize>| async move {
            let replies = attempts.run(admitted, bytes, || call(range.clone()), |each| answered(&range, each)).await;
            replies.map(|each| (range, each))
        };
        let mut in_flight = FuturesUnordered::new();
        let mut waiting = batches.peekable();
        loop {
            let settled = self.desk.settled();
            let mut refusal = None;
            while let Some((range, bytes)) = waiting.peek().cloned() {
                match self.desk.admit(bytes) {
                    Ok(admitted) => in_flight.push(attempt(admitted, bytes, range)),
                    Err(refused) => {
                        refusal = Some(refused);
                        break;
                    }
                }
                waiting.next();
            }
            match refusal {
                // Values of this length are never asked for.
                Some(Refusal::TooLarge) => _ = waiting.next(),
                Some(Refusal::Unavailable) if in_flight.is_empty() => return,
                // Whoever holds the last permits gives them back; a probe of another call is not waited for.
                Some(Refusal::Busy) if in_flight.is_empty() => settled.await,
                Some(Refusal::Probing) if in_flight.is_empty() => return,
                _ => match in_flight.next().await {
                    Some(Some((range, each))) => take(range, each),
                    Some(None) => {}
                    None => return,
                },
            }
        }
    }

    fn batches<'a>(&self, sizes: impl Fn(usize) -> usize + Send + 'a, count: usize) -> Batches<'a> {
        Batches::new(count, self.options.batch_keys, self.options.batch_bytes, Box::new(sizes))
    }
}

/// What a key and what is known of it may take of a batch, where no value travels.
const KEY_BYTES: usize = 256;

impl<B: Backend> Store for Guarded<B> {
    fn get_many(&self, keys: &[String], bytes_max: usize, deadline: Instant) -> Vec<Option<Vec<u8>>> {
        let mut values = vec![None; keys.len()];
        let batches = self.batches(move |_| bytes_max, keys.len());
        let answered = |_: &Range<usize>, each: &[Option<Vec<u8>>]| {
            let (hits, bytes_in) =
                each.iter().flatten().fold((0, 0), |(hits, bytes), value| (hits + 1, bytes + value.len() as u64));
            Answered { hits, misses: each.len() as u64 - hits, bytes_in, ..Answered::default() }
        };
        let take = |range: Range<usize>, each: Vec<Option<Vec<u8>>>| {
            // No backend's mistake is worth a value that is too long.
            values[range].iter_mut().zip(each).for_each(|(value, found)| {
                *value = found.filter(|bytes| !bytes.is_empty() && bytes.len() <= bytes_max);
            });
        };
        let call = |range: Range<usize>| self.backend.get(&keys[range], bytes_max);
        self.until(deadline, self.each_batch(batches, call, answered, take));
        values
    }

    fn has_many(&self, keys: &[String], deadline: Instant) -> Vec<bool> {
        let mut are_there = vec![false; keys.len()];
        let batches = self.batches(|_| KEY_BYTES, keys.len());
        let take = |range: Range<usize>, each: Vec<bool>| {
            are_there[range].iter_mut().zip(each).for_each(|(is_there, found)| *is_there = found);
        };
        let call = |range: Range<usize>| self.backend.has(&keys[range]);
        self.until(deadline, self.each_batch(batches, call, |_, _| Answered::default(), take));
        are_there
    }

    fn put_many(&self, entries: &[(String, &[u8])], deadline: Instant) -> usize {
        let mut count = 0;
        let batches = self.batches(|index| entries[index].1.len(), entries.len());
        let answered = |range: &Range<usize>, each: &[bool]| {
            let sizes = entries[range.clone()].iter().zip(each).filter(|(_, is_there)| **is_there);
            Answered { bytes_out: sizes.map(|((_, value), _)| value.len() as u64).sum(), ..Answered::default() }
        };
        let call = |range: Range<usize>| self.backend.put(&entries[range]);
        let take = |_: Range<usize>, each: Vec<bool>| count += each.into_iter().filter(|is_there| *is_there).count();
        self.until(deadline, self.each_batch(batches, call, answered, take));
        count
    }

    fn unavailable_for(&self) -> Option<Duration> {
        self.desk.unavailable_for()
    }

    fn remove_many(&self, keys: &[String], deadline: Instant) {
        let batches = self.batches(|_| KEY_BYTES, keys.len());
        let call = |range: Range<usize>| self.backend.remove(&keys[range]);
        self.until(deadline, self.each_batch(batches, call, |_, _: &[()]| Answered::default(), |_, _| {}));
    }
}
