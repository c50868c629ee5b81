//! Turns a backend into a store that never fails and is never late: with a deadline, limits, retries and a breaker.
//!
//! ```text
//! call -> deadline -> batches, as many at a time as the gate admits -> attempts, each with its own timeout -> backend
//! ```
//!
//! A call cuts its keys into batches (`batch`), requests them together, and takes the results that have arrived at its
//! deadline. A batch that fails is retried after a random pause (`attempt`). A store that failed too often is not asked
//! (`Gate`).
//!
//! Calls block their thread. They can be made on any thread, including a runtime's; a panic of a client is a miss.

mod attempt;
mod backend;
mod batch;
mod desk;

use std::future::Future;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use kvtide_files::{Error, Result};
use tokio::runtime::Handle;

use crate::fault::{Fault, FaultKind};
use crate::gate::{Answered, Refusal};
use crate::health::{Event, Health};
use crate::policy::GuardOptions;
use crate::store::Store;
use attempt::Attempts;
pub use backend::{Backend, Replies};
use batch::Batches;
pub use desk::Watcher;
use desk::{Admitted, WatchedDesk};

/// A backend as a store that never fails.
pub struct Guarded<B> {
    backend: B,
    runtime: Handle,
    options: GuardOptions,
    desk: WatchedDesk,
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
    /// Guards a backend. The runtime must have threads of its own, which run while a caller waits.
    pub fn new(backend: B, options: GuardOptions, runtime: Handle) -> Result<Self> {
        Self::watched(backend, options, runtime, None)
    }

    /// As [`Guarded::new`], with a watcher that is called when there is an unread event. It must be brief, and is
    /// called on any thread.
    pub fn watched(backend: B, options: GuardOptions, runtime: Handle, watcher: Option<Watcher>) -> Result<Self> {
        if options.attempts_max == 0 {
            return Err(Error::argument("attemptsMax", 0u64, "at least 1"));
        }
        if options.attempt_timeout.is_zero() {
            return Err(Error::argument("attemptTimeout", 0u64, "more than 0"));
        }
        if options.batch_bytes == 0 || options.batch_keys == 0 {
            return Err(Error::argument("batchBytes, batchKeys", 0u64, "at least 1"));
        }
        let desk = WatchedDesk::new(options.gate, watcher)?;
        Ok(Guarded { backend, runtime, options, desk })
    }

    /// Returns the store's health so far.
    #[must_use]
    pub fn health(&self) -> Health {
        self.desk.desk.health()
    }

    /// Returns the next unread event.
    pub fn next_event(&self) -> Option<Event> {
        self.desk.desk.next_event()
    }

    /// Returns the backend.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// Runs a call on this thread until it ends or its deadline passes.
    fn until(&self, deadline: Instant, call: impl Future<Output = ()> + Send) {
        let limited = async { _ = tokio::time::timeout_at(deadline.into(), call).await };
        let run = || catch_unwind(AssertUnwindSafe(|| self.runtime.block_on(limited))).is_ok();
        let went_well = if Instant::now() >= deadline {
            true
        } else if Handle::try_current().is_ok() {
            // A runtime's thread must not block on a runtime.
            std::thread::scope(|scope| scope.spawn(run).join().unwrap_or(false))
        } else {
            run()
        };
        if !went_well {
            self.desk.failed(Fault::new(FaultKind::Unreachable, "the client failed, or its runtime has ended"));
        }
    }

    /// Requests batches, and hands over their results.
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
                // A value of this length never fits the limits.
                Some(Refusal::TooLarge) => _ = waiting.next(),
                Some(Refusal::Unavailable) if in_flight.is_empty() => return,
                // The calls that hold the last permits will return them. A probe of another call is not waited for.
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

/// The bytes that a key and its answer may take in a batch without values.
const KEY_BYTES: usize = 256;

impl<B: Backend> Store for Guarded<B> {
    fn get(&self, keys: &[String], bytes_max: usize, deadline: Instant) -> Vec<Option<Vec<u8>>> {
        let mut values = vec![None; keys.len()];
        let batches = self.batches(move |_| bytes_max, keys.len());
        let answered = |_: &Range<usize>, each: &[Option<Vec<u8>>]| {
            let (hits, bytes_in) =
                each.iter().flatten().fold((0, 0), |(hits, bytes), value| (hits + 1, bytes + value.len() as u64));
            Answered { hits, misses: each.len() as u64 - hits, bytes_in, ..Answered::default() }
        };
        let take = |range: Range<usize>, each: Vec<Option<Vec<u8>>>| {
            // A value that is too long is dropped, even if a backend returns one by mistake.
            values[range].iter_mut().zip(each).for_each(|(value, found)| {
                *value = found.filter(|bytes| !bytes.is_empty() && bytes.len() <= bytes_max);
            });
        };
        let call = |range: Range<usize>| self.backend.get(&keys[range], bytes_max);
        self.until(deadline, self.each_batch(batches, call, answered, take));
        values
    }

    fn has(&self, keys: &[String], deadline: Instant) -> Vec<bool> {
        let mut are_there = vec![false; keys.len()];
        let batches = self.batches(|_| KEY_BYTES, keys.len());
        let take = |range: Range<usize>, each: Vec<bool>| {
            are_there[range].iter_mut().zip(each).for_each(|(is_there, found)| *is_there = found);
        };
        let call = |range: Range<usize>| self.backend.has(&keys[range]);
        self.until(deadline, self.each_batch(batches, call, |_, _| Answered::default(), take));
        are_there
    }

    fn put(&self, entries: &[(String, &[u8])], deadline: Instant) -> usize {
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
        self.desk.desk.unavailable_for()
    }

    fn health(&self) -> Option<Health> {
        Some(Guarded::health(self))
    }

    fn next_event(&self) -> Option<Event> {
        Guarded::next_event(self)
    }

    fn event_behind(&self, seen: &mut u64) -> Option<Event> {
        self.desk.desk.event_behind(seen)
    }

    fn events_begin(&self) -> u64 {
        self.desk.desk.events_begin()
    }

    fn remove(&self, keys: &[String], deadline: Instant) {
        let batches = self.batches(|_| KEY_BYTES, keys.len());
        let call = |range: Range<usize>| self.backend.remove(&keys[range]);
        self.until(deadline, self.each_batch(batches, call, |_, _: &[()]| Answered::default(), |_, _| {}));
    }
}
