//! Publishes the events of a cache's blocks in the form that other routers read.
//!
//! Events are taken from the cache's log on the cache's thread and sent on the network threads. If the log no longer
//! contains the next event, the entire content of the prefix cache is published again.

use std::collections::{HashMap, VecDeque};

use kvtide_core::paged::{BlockKey, Event as CacheEvent};
use kvtide_router::{BlockHash, Event, Publisher, PublisherOptions, RemovedBlocks, StoredBlocks, Tier};
use kvtide_tiers::TierEvent;
use napi::bindgen_prelude::AsyncTask;
use napi::{Env, Result};
use napi_derive::napi;

use crate::border::argument::{optional, whole};
use crate::border::handle::{Handle, guard};
use crate::border::runtime;
use crate::border::task::PoolTask;
use crate::sequences::cache::NativePagedKvCache;
use crate::tiers::attach::NativeTiers;

/// Limits of one batch: the number of events, and of token ids in them. A single event may have more token ids.
const BATCH_EVENTS: usize = 1000;
const BATCH_TOKENS: usize = 100_000;

/// Number of blocks that are remembered although no tier has them, because one may still be on its way to a tier.
const GONE_BLOCKS: usize = 1 << 16;

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
    known: KnownBlocks,
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
        let publishing = Publishing { publisher, known: KnownBlocks::default(), next: None };
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
        let Publishing { publisher, known, next } = match self.publishing.get_mut() {
            Ok(publishing) => publishing,
            // The publisher was disposed of in the turn in which the event occurred.
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
                    // Followers then start from nothing, for the tiers as well.
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

/// Published blocks that are in some tier, with their parents: a tier does not know the parent of a block.
#[derive(Default)]
struct KnownBlocks {
    blocks: HashMap<u64, Known>,
    /// Blocks that may be in no tier any more, the oldest first. An evicted block may still be on its way to a tier,
    /// which reports it later.
    gone: VecDeque<u64>,
}

struct Known {
    parent: Option<u64>,
    /// One bit for each tier that has the block.
    tiers: u8,
}

fn bit(tier: Tier) -> u8 {
    1 << tier as u8
}

impl KnownBlocks {
    /// Converts an event of the cache's own blocks. They count as blocks of the accelerator, whichever memory they are
    /// in.
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

    /// Converts an event of a tier. `None` for a store, whose blocks belong to no single worker, and for a block whose
    /// parent is unknown.
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
            self.gone.push_back(key.short());
        }
        let medium = Some(tier.medium().to_owned());
        Event::Removed(RemovedBlocks { hashes: vec![key.short().into()], medium, ..RemovedBlocks::default() })
    }

    /// Forgets the oldest blocks that are in no tier. Called after all events that happened together have been
    /// converted.
    fn forget(&mut self) {
        while self.gone.len() > GONE_BLOCKS
            && let Some(key) = self.gone.pop_front()
        {
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
