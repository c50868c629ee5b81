//! Follows the events of workers over the network.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kvtide_router::{Followed, Follower, FollowerOptions};
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

/// Applies published events to the index until the worker or the router is gone.
async fn take_in(mut follower: Follower, shared: Shared, name: String, number: u64, counts: Arc<Counts>) {
    while let Some(followed) = follower.next().await {
        let Ok(mut routing) = shared.lock() else { return };
        let Routing { index, workers, check, .. } = &mut *routing;
        let Some(worker) = workers.get_mut(&name).filter(|worker| worker.number == number) else { return };
        // If memory is short, the index knows fewer of the worker's blocks than it has.
        let _ = match followed {
            Followed::Batch { batch, .. } => {
                counts.batches.fetch_add(1, Ordering::Relaxed);
                batch.events.iter().for_each(|event| check.told(event));
                worker.feed.apply(index, &batch)
            }
            Followed::Lost => {
                counts.losses.fetch_add(1, Ordering::Relaxed);
                worker.feed.lost(index)
            }
        };
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
