//! What happens to a cache's blocks, published as others read it.
//!
//! Events are taken out of the cache's log on its thread, and sent by the network's. Where the log did not reach back, everything that prompts
//! find is published anew.

use std::collections::HashMap;

use kvtide_core::paged::{BlockKey, Event as CacheEvent};
use kvtide_router::{BlockHash, Event, Publisher, PublisherOptions, RemovedBlocks, StoredBlocks, Tier};
use kvtide_store::TierEvent;
use napi::bindgen_prelude::AsyncTask;
use napi::{Env, Result};
use napi_derive::napi;

use crate::border::argument::{optional, whole};
use crate::border::handle::{Handle, guard};
use crate::border::task::PoolTask;
use crate::sequences::cache::NativePagedKvCache;
use crate::store::runtime;
use crate::store::tiers::NativeTiers;

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
    known: KnownBlocks,
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
        let publishing = Publishing { publisher, known: KnownBlocks::default(), next: None };
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

    /// Publishes what happened since the last call, in the cache and in its tiers.
    #[napi]
    pub fn publish(&mut self, env: &Env, cache: &mut NativePagedKvCache, tiers: Option<&NativeTiers>) -> Result<()> {
        let Publishing { publisher, known, next } = match self.publishing.get_mut() {
            Ok(publishing) => publishing,
            // It was disposed of in the turn in which something changed.
            Err(_) => return Ok(()),
        };
        cache.cache.change(env, |cache| {
            let was_followed = next.is_some();
            if publisher.take_behind() {
                *next = None;
            }
            let seen = next.and_then(|number| {
                let unseen = cache.events(number);
                (unseen.missed == 0).then(|| (unseen.events.concat(), unseen.next))
            });
            let (events, after) = match seen {
                Some(seen) => seen,
                None => {
                    // Others know nothing any more then, of the tiers either.
                    if let Some(tiers) = tiers.filter(|_| !was_followed) {
                        tiers.follow(cache.followed_group());
                    }
                    let (found, after) = cache.found_events()?;
                    (std::iter::once(CacheEvent::Cleared).chain(found).collect(), after)
                }
            };
            *next = Some(after);
            let block_size = cache.block_size();
            let mut told: Vec<Event> = events.iter().map(|event| known.of_cache(event, block_size)).collect();
            if let Some(tiers) = tiers {
                told.extend(
                    tiers.events().iter().filter_map(|event| known.of_tier(event, tiers.name(event.place), block_size)),
                );
            }
            known.forget();
            for some in told.chunks(BATCH) {
                publisher.publish(some.to_vec())?;
            }
            Ok(())
        })
    }

    #[napi]
    pub fn dispose(&mut self, env: &Env) {
        self.publishing.dispose(env, |_| ());
    }
}

/// The blocks that were published and are in some tier: what is before each, which a tier does not know.
#[derive(Default)]
struct KnownBlocks {
    blocks: HashMap<u64, Known>,
    /// Those that may be in no tier any more.
    gone: Vec<u64>,
}

struct Known {
    parent: Option<u64>,
    /// A bit for each tier that it is in.
    tiers: u8,
}

fn bit(tier: Tier) -> u8 {
    1 << tier as u8
}

impl KnownBlocks {
    /// An event of the cache's own blocks, which count as those of the accelerator, whatever memory they lie in.
    fn of_cache(&mut self, event: &CacheEvent, block_size: u32) -> Event {
        match event {
            CacheEvent::Stored { key, parent, tokens, is_first } => {
                let parent = (!is_first).then(|| parent.short());
                let known = self.blocks.entry(key.short()).or_insert(Known { parent, tiers: 0 });
                known.tiers |= bit(Tier::Gpu);
                stored(key, parent, tokens, Tier::Gpu, block_size)
            }
            CacheEvent::Removed { key } => self.removed(key, Tier::Gpu),
            CacheEvent::Cleared => {
                self.blocks.clear();
                Event::Cleared
            }
        }
    }

    /// An event of a tier; none of a store, which is nobody's own, and of a block of which it is not known what it follows.
    fn of_tier(&mut self, event: &TierEvent, tier: &str, block_size: u32) -> Option<Event> {
        let (key, tier) = match tier {
            "memory" => (&event.key, Tier::Cpu),
            "disk" => (&event.key, Tier::Disk),
            _ => return None,
        };
        let known = self.blocks.get_mut(&key.short())?;
        match &event.tokens {
            Some(tokens) => {
                known.tiers |= bit(tier);
                Some(stored(key, known.parent, tokens, tier, block_size))
            }
            None => Some(self.removed(key, tier)),
        }
    }

    fn removed(&mut self, key: &BlockKey, tier: Tier) -> Event {
        if let Some(known) = self.blocks.get_mut(&key.short()) {
            known.tiers &= !bit(tier);
            self.gone.push(key.short());
        }
        let medium = Some(tier.medium().to_owned());
        Event::Removed(RemovedBlocks { hashes: vec![key.short().into()], medium, ..RemovedBlocks::default() })
    }

    /// Lets go of blocks that are in no tier, once all that happened together was told.
    fn forget(&mut self) {
        for key in self.gone.drain(..) {
            if self.blocks.get(&key).is_some_and(|known| known.tiers == 0) {
                self.blocks.remove(&key);
            }
        }
    }
}

fn stored(key: &BlockKey, parent: Option<u64>, tokens: &[u32], tier: Tier, block_size: u32) -> Event {
    Event::Stored(StoredBlocks {
        hashes: vec![key.short().into()],
        parent: parent.map(BlockHash::from),
        tokens: tokens.to_vec(),
        block_size,
        medium: Some(tier.medium().to_owned()),
        ..StoredBlocks::default()
    })
}
