//! Follows the events of workers over the network.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kvtide_router::{Event, Followed, Follower, FollowerOptions, NameCheck, WorkerFeed, WorkerIndex};
use napi::{Env, Result};
use napi_derive::napi;

use super::prefix_router::{NativePrefixRouter, Routing, Shared};
use crate::border::handle::{guard, locked};
use crate::border::runtime;

#[napi]
impl NativePrefixRouter {
    /// Follows the events that a worker publishes.
    #[napi]
    pub fn follow(
        &self,
        env: &Env,
        name: String,
        endpoint: String,
        replay_endpoint: Option<String>,
        topic: String,
    ) -> Result<NativeFollowing> {
        guard(env, || {
            let shared = self.routing.get()?.clone();
            let number = locked(&shared, |routing| Ok(routing.worker(&name)?.number))?;
            let options = FollowerOptions { endpoint, replay_endpoint, topic, ..FollowerOptions::default() };
            let runtime = runtime::handle()?;
            let follower = Follower::start(&runtime, options)?;
            let counts = Arc::new(Counts::default());
            let task = runtime.spawn(take_in(follower, shared, name, number, counts.clone()));
            Ok(NativeFollowing { task, counts })
        })
    }
}

#[derive(Default)]
struct Counts {
    batches: AtomicU64,
    losses: AtomicU64,
}

/// The time for which events are applied at once. A worker may send events that cost milliseconds each; in between,
/// JavaScript gets the index for as long.
const SLICE: Duration = Duration::from_millis(1);

/// Applies published events to the index until the worker or the router is gone.
async fn take_in(mut follower: Follower, shared: Shared, name: String, number: u64, counts: Arc<Counts>) {
    let worker = Followee { shared, name, number };
    while let Some(followed) = follower.next().await {
        let is_there = match followed {
            Followed::Batch { batch, .. } => {
                counts.batches.fetch_add(1, Ordering::Relaxed);
                worker.take_in(&batch.events).await
            }
            Followed::Lost => {
                counts.losses.fetch_add(1, Ordering::Relaxed);
                worker.change(|index, _, feed| feed.lost(index)).is_some()
            }
        };
        if !is_there {
            return;
        }
    }
}

/// The worker whose events are followed.
struct Followee {
    shared: Shared,
    name: String,
    number: u64,
}

impl Followee {
    /// Applies events, a slice of time after the other. Returns false if the worker or the router is gone.
    async fn take_in(&self, events: &[Event]) -> bool {
        let mut events = events.iter().peekable();
        while events.peek().is_some() {
            let applied = self.change(|index, check, feed| {
                let begun = Instant::now();
                while begun.elapsed() < SLICE
                    && let Some(event) = events.next()
                {
                    check.told(event);
                    // If memory is short, the index knows fewer of the worker's blocks than it has.
                    let _ = feed.apply_event(index, event);
                }
            });
            if applied.is_none() {
                return false;
            }
            if events.peek().is_some() {
                tokio::time::sleep(SLICE).await;
            }
        }
        true
    }

    /// Changes the index. Returns [`None`] if the worker or the router is gone.
    fn change<R>(&self, work: impl FnOnce(&mut WorkerIndex, &mut NameCheck, &mut WorkerFeed) -> R) -> Option<R> {
        let mut routing = self.shared.lock().ok()?;
        let Routing { index, workers, check, .. } = &mut *routing;
        let worker = workers.get_mut(&self.name).filter(|worker| worker.number == self.number)?;
        Some(work(index, check, &mut worker.feed))
    }
}

/// A followed worker, until this object is disposed of.
#[napi]
pub struct NativeFollowing {
    task: tokio::task::JoinHandle<()>,
    counts: Arc<Counts>,
}

#[napi]
impl NativeFollowing {
    /// The number of batches received, and how often events were lost.
    #[napi(catch_unwind)]
    pub fn counts(&self) -> Vec<f64> {
        [&self.counts.batches, &self.counts.losses].map(|count| count.load(Ordering::Relaxed) as f64).into()
    }

    #[napi(catch_unwind)]
    pub fn dispose(&self) {
        self.task.abort();
    }
}

impl Drop for NativeFollowing {
    fn drop(&mut self) {
        self.task.abort();
    }
}
