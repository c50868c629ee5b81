//! What happens to a cache's blocks, published as others read it.
//!
//! Events are taken out of the cache's log on its thread, and sent by the network's. Where the log did not reach back, everything that prompts
//! find is published anew.

use kvtide_core::paged::{BlockKey, Event as CacheEvent};
use kvtide_router::{BlockHash, Event, Publisher, PublisherOptions, RemovedBlocks, StoredBlocks, Tier};
use napi::bindgen_prelude::AsyncTask;
use napi::{Env, Result};
use napi_derive::napi;

use crate::border::argument::{optional, whole};
use crate::border::handle::{Handle, guard};
use crate::border::task::PoolTask;
use crate::sequences::cache::NativePagedKvCache;
use crate::store::runtime;

/// Events that are published in one batch at most.
const BATCH: usize = 1000;

/// Where events are published.
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
    /// The number of the next event; none before everything that is there was published.
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
        let publishing = Publishing { publisher, next: None };
        NativePublisher { publishing: Handle::new("EventPublisher", publishing) }
    }
}

#[napi]
impl NativePublisher {
    /// Where it is bound, and where replays are asked for.
    #[napi]
    pub fn endpoints(&self, env: &Env) -> Result<Vec<Option<String>>> {
        self.publishing.read(env, |of| {
            Ok(vec![Some(of.publisher.endpoint().to_owned()), of.publisher.replay_endpoint().map(str::to_owned)])
        })
    }

    /// The number that the next batch gets.
    #[napi]
    pub fn next_number(&self, env: &Env) -> Result<f64> {
        self.publishing.read(env, |of| Ok(of.publisher.next_number() as f64))
    }

    /// Publishes what happened since the last call.
    #[napi]
    pub fn publish(&mut self, env: &Env, cache: &mut NativePagedKvCache) -> Result<()> {
        let Publishing { publisher, next } = match self.publishing.get_mut() {
            Ok(publishing) => publishing,
            // It was disposed of in the turn in which something changed.
            Err(_) => return Ok(()),
        };
        cache.cache.change(env, |cache| {
            let block_size = cache.block_size();
            let events = match *next {
                Some(number) => {
                    let unseen = cache.events(number);
                    (unseen.missed == 0).then(|| (unseen.events.concat(), unseen.next))
                }
                None => None,
            };
            let (events, after) = match events {
                Some(seen) => seen,
                None => {
                    let (found, after) = cache.found_events()?;
                    (std::iter::once(CacheEvent::Cleared).chain(found).collect(), after)
                }
            };
            *next = Some(after);
            for some in events.chunks(BATCH) {
                publisher.publish(some.iter().map(|event| told(event, block_size)).collect())?;
            }
            Ok(())
        })
    }

    #[napi]
    pub fn dispose(&mut self, env: &Env) {
        self.publishing.dispose(env, |_| ());
    }
}

/// An event as others read it.
fn told(event: &CacheEvent, block_size: u32) -> Event {
    let hash = |key: &BlockKey| BlockHash::from(key.short());
    let medium = || Some(Tier::Gpu.medium().to_owned());
    match event {
        CacheEvent::Stored { key, parent, tokens, is_first } => Event::Stored(StoredBlocks {
            hashes: vec![hash(key)],
            parent: (!is_first).then(|| hash(parent)),
            tokens: tokens.to_vec(),
            block_size,
            medium: medium(),
            ..StoredBlocks::default()
        }),
        CacheEvent::Removed { key } => {
            Event::Removed(RemovedBlocks { hashes: vec![hash(key)], medium: medium(), ..RemovedBlocks::default() })
        }
        CacheEvent::Cleared => Event::Cleared,
    }
}
