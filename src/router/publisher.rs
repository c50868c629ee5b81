//! Publishes the events of a cache's blocks in the form that other routers read.
//!
//! Events are taken from the cache's log on the cache's thread and sent on the network threads. If the log no longer
//! contains the next event, the entire content of the prefix cache is published again.

use kvtide_router::{Event, Publisher, PublisherOptions};
use napi::bindgen_prelude::AsyncTask;
use napi::{Env, Result};
use napi_derive::napi;

use super::published::Published;
use crate::border::argument::{optional, whole};
use crate::border::handle::{Handle, guard};
use crate::border::runtime;
use crate::border::task::PoolTask;
use crate::sequences::cache::NativePagedKvCache;
use crate::tiers::attach::NativeTiers;

/// Limits of one batch: the number of events, and of token ids in them. A single event may have more token ids.
const BATCH_EVENTS: usize = 1000;
const BATCH_TOKENS: usize = 100_000;

/// Options of a publisher.
#[napi(object, object_to_js = false)]
pub struct NativePublisherOptions {
    pub endpoint: String,
    #[napi(ts_type = "string | undefined")]
    pub replay_endpoint: Option<String>,
    pub topic: String,
    #[napi(ts_type = "number | undefined")]
    pub rank: Option<f64>,
    pub first: f64,
}

struct Publishing {
    publisher: Publisher,
    /// The groups that are published; [`None`] before the first call.
    published: Option<Published>,
    /// The number of the next event; `None` until the entire content has been published once.
    next: Option<u64>,
}

#[napi]
pub struct NativePublisher {
    publishing: Handle<Publishing>,
}

#[napi(ts_return_type = "Promise<NativePublisher>")]
pub fn bind_publisher(
    env: &Env,
    options: NativePublisherOptions,
) -> Result<AsyncTask<PoolTask<Publisher, NativePublisher>>> {
    guard(env, || {
        let NativePublisherOptions { endpoint, replay_endpoint, topic, rank, first } = options;
        let options = PublisherOptions {
            endpoint,
            replay_endpoint,
            topic,
            rank: optional("rank", rank, whole)?.map(|rank| rank as u32),
            first: whole("first", first)?,
            ..PublisherOptions::default()
        };
        let runtime = runtime::handle()?;
        let bind = move || Ok(runtime.block_on(Publisher::bind(&runtime, options))?);
        Ok(PoolTask::of(bind, NativePublisher::new))
    })
}

impl NativePublisher {
    fn new(publisher: Publisher) -> Self {
        let publishing = Publishing { publisher, published: None, next: None };
        NativePublisher { publishing: Handle::new("EventPublisher", publishing) }
    }
}

#[napi]
impl NativePublisher {
    /// The bound endpoint, and the one that answers replay requests.
    #[napi]
    pub fn endpoints(&self, env: &Env) -> Result<Vec<Option<String>>> {
        self.publishing.read(env, |of| {
            Ok(vec![Some(of.publisher.endpoint().to_owned()), of.publisher.replay_endpoint().map(str::to_owned)])
        })
    }

    /// The number of the next batch.
    #[napi]
    pub fn next_number(&self, env: &Env) -> Result<f64> {
        self.publishing.read(env, |of| Ok(of.publisher.next_number() as f64))
    }

    /// Publishes the events since the last call, of the cache and of its tiers.
    #[napi]
    pub fn publish(&mut self, env: &Env, cache: &mut NativePagedKvCache, tiers: Option<&NativeTiers>) -> Result<()> {
        let Publishing { publisher, published, next } = match self.publishing.get_mut() {
            Ok(publishing) => publishing,
            // The publisher was disposed of in the turn in which the event occurred.
            Err(_) => return Ok(()),
        };
        cache.cache.change(env, |cache| {
            let was_followed = next.is_some();
            let published = published.get_or_insert_with(|| Published::of(cache));
            if publisher.take_behind() {
                *next = None;
            }
            let seen = next.and_then(|number| {
                let unseen = cache.events(number);
                (unseen.missed == 0).then(|| {
                    let told = unseen.iter().filter_map(|(kept, event)| published.of_cache(kept, event));
                    (told.collect::<Vec<Event>>(), unseen.next)
                })
            });
            let (mut told, after) = match seen {
                Some(seen) => seen,
                None => {
                    // Followers then start from nothing, for the tiers as well.
                    if let Some(tiers) = tiers.filter(|_| !was_followed) {
                        tiers.follow(published.groups());
                    }
                    let (found, after) = cache.found_events()?;
                    let mut told = published.anew();
                    told.extend(found.iter().filter_map(|(kept, event)| published.of_cache(*kept, event)));
                    (told, after)
                }
            };
            *next = Some(after);
            if let Some(tiers) = tiers {
                let events = tiers.events();
                told.extend(events.iter().filter_map(|event| published.of_tier(event, tiers.name(event.place))));
            }
            published.forget();
            for some in batches(told) {
                publisher.publish(some)?;
            }
            Ok(())
        })
    }

    #[napi]
    pub fn dispose(&mut self, env: &Env) {
        self.publishing.dispose(env, |_| ());
    }
}

/// Splits events into batches that stay far below a message's size limit.
fn batches(told: Vec<Event>) -> Vec<Vec<Event>> {
    let mut batches: Vec<Vec<Event>> = Vec::new();
    let mut tokens = 0;
    for event in told {
        let own = if let Event::Stored(stored) = &event { stored.tokens.len() } else { 0 };
        tokens += own;
        match batches.last_mut().filter(|batch| batch.len() < BATCH_EVENTS && tokens <= BATCH_TOKENS) {
            Some(batch) => batch.push(event),
            None => {
                tokens = own;
                batches.push(vec![event]);
            }
        }
    }
    batches
}
