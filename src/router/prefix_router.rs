//! The router: workers by name, an index of the blocks that each has cached, and the workers whose events are followed
//! over the network.
//!
//! Events of a [followed](super::worker_events) worker are applied to the index on another thread: a lookup waits for
//! a millisecond of them, or for one event that takes longer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use kvtide_core::Error;
use kvtide_router::{
    BlockHash, Event, NameCheck, Policy, RemovedBlocks, StoredBlocks, WorkerFeed, WorkerId, WorkerIndex,
};
use napi::bindgen_prelude::BigUint64Array;
use napi::{Env, Result};
use napi_derive::napi;

use crate::border::handle::{Handle, locked};
use crate::border::refusal::{Outcome, Refusal};

impl From<kvtide_router::Error> for Refusal {
    fn from(error: kvtide_router::Error) -> Self {
        Refusal { code: error.code(), message: error.to_string(), details: error.details() }
    }
}

/// A worker: its entry in the index, and the state of its event stream.
pub(super) struct Worker {
    pub(super) feed: WorkerFeed,
    /// Number that tells apart workers added under the same name: events of a removed worker are ignored.
    #[cfg_attr(not(feature = "net"), expect(dead_code, reason = "only followed workers need it"))]
    pub(super) number: u64,
}

#[derive(Default)]
pub(super) struct Routing {
    pub(super) index: WorkerIndex,
    pub(super) workers: HashMap<String, Worker>,
    names: Vec<String>,
    made: u64,
    /// Detects that prompts and workers compute different block keys.
    pub(super) check: NameCheck,
}

impl Routing {
    pub(super) fn worker(&self, name: &str) -> Outcome<&Worker> {
        self.workers
            .get(name)
            .ok_or_else(|| Error::argument("worker", name, "the name of a worker that was added").into())
    }

    fn apply(&mut self, name: &str, events: &[Event]) -> Outcome<()> {
        self.worker(name)?;
        let worker = self.workers.get_mut(name).expect("a worker that is there");
        for event in events {
            worker.feed.apply_event(&mut self.index, event)?;
            self.check.told(event);
        }
        Ok(())
    }

    fn name(&self, worker: WorkerId) -> String {
        self.names.get(worker.index()).cloned().unwrap_or_default()
    }
}

pub(super) type Shared = Arc<Mutex<Routing>>;

/// The worker chosen for a prompt.
#[napi(object, object_from_js = false)]
pub struct NativeRoute {
    pub worker: String,
    pub blocks: u32,
    pub cost: f64,
}

/// A cache event, in the form that JavaScript passes.
#[napi(object, object_to_js = false)]
pub struct NativeCacheEvent {
    #[napi(ts_type = "'stored' | 'removed' | 'cleared' | 'state-stored' | 'state-removed'")]
    pub kind: String,
    #[napi(ts_type = "string | undefined")]
    pub key: Option<String>,
    #[napi(ts_type = "string | undefined")]
    pub parent: Option<String>,
    /// The kinds of content that the cache keeps: `'tokens'`, `'states'`.
    #[napi(ts_type = "readonly ('tokens' | 'states')[] | undefined")]
    pub keeps: Option<Vec<String>>,
}

/// The groups of a cache with states, in events of its own form.
const TOKENS: (u32, &str) = (0, "full_attention");
const STATES: (u32, &str) = (1, "mamba");

fn stored_in((group, kind): (u32, &str), hashes: Vec<BlockHash>) -> Event {
    let (group, spec_kind) = (Some(group), Some(kind.to_owned()));
    Event::Stored(StoredBlocks { hashes, group, spec_kind, ..StoredBlocks::default() })
}

/// The first eight bytes of a key, given as hexadecimal digits.
fn short(digits: &str) -> Outcome<u64> {
    let first = digits.get(..16).filter(|_| digits.len() == 64);
    let number = first.and_then(|first| u64::from_str_radix(first, 16).ok());
    let number = number.ok_or_else(|| Error::argument("key", digits, "64 hexadecimal digits"))?;
    Ok(number.swap_bytes())
}

impl NativeCacheEvent {
    /// The events that say this: several for a beginning, which also says what the cache keeps.
    fn read(&self) -> Outcome<Vec<Event>> {
        let key = || short(self.key.as_deref().unwrap_or_default()).map(BlockHash::from);
        Ok(match &*self.kind {
            "stored" => vec![Event::Stored(StoredBlocks {
                hashes: vec![key()?],
                parent: self.parent.as_deref().map(short).transpose()?.map(BlockHash::from),
                ..StoredBlocks::default()
            })],
            "removed" => vec![Event::Removed(RemovedBlocks { hashes: vec![key()?], ..RemovedBlocks::default() })],
            "state-stored" => vec![stored_in(STATES, vec![key()?])],
            "state-removed" => {
                let (group, kind) = STATES;
                let (group, spec_kind) = (Some(group), Some(kind.to_owned()));
                vec![Event::Removed(RemovedBlocks {
                    hashes: vec![key()?],
                    group,
                    spec_kind,
                    ..RemovedBlocks::default()
                })]
            }
            _ => {
                let of = |kept: &String| stored_in(if kept == "states" { STATES } else { TOKENS }, Vec::new());
                std::iter::once(Event::Cleared).chain(self.keeps.iter().flatten().map(of)).collect()
            }
        })
    }
}

#[napi]
pub struct NativePrefixRouter {
    pub(super) routing: Handle<Shared>,
}

#[napi]
impl NativePrefixRouter {
    #[napi(catch_unwind, constructor)]
    pub fn new() -> Self {
        NativePrefixRouter { routing: Handle::new("PrefixRouter", Shared::default()) }
    }

    /// Adds a worker. Returns true if the name is new.
    #[napi]
    pub fn add_worker(&self, env: &Env, name: String) -> Result<bool> {
        self.change(env, |routing| {
            if routing.workers.contains_key(&name) {
                return Ok(false);
            }
            let id = routing.index.add_worker()?;
            routing.made += 1;
            let number = routing.made;
            if routing.names.len() <= id.index() {
                routing.names.resize(id.index() + 1, String::new());
            }
            routing.names[id.index()].clone_from(&name);
            routing.workers.insert(name, Worker { feed: WorkerFeed::new(id), number });
            Ok(true)
        })
    }

    #[napi]
    pub fn remove_worker(&self, env: &Env, name: String) -> Result<()> {
        self.change(env, |routing| {
            let id = routing.worker(&name)?.feed.worker();
            routing.index.remove_worker(id)?;
            routing.workers.remove(&name);
            Ok(())
        })
    }

    #[napi]
    pub fn set_load(&self, env: &Env, name: String, load: f64) -> Result<()> {
        self.change(env, |routing| {
            let id = routing.worker(&name)?.feed.worker();
            Ok(routing.index.set_load(id, load)?)
        })
    }

    /// Applies events to the index, all of them or none.
    #[napi]
    pub fn apply(&self, env: &Env, name: String, events: Vec<NativeCacheEvent>) -> Result<()> {
        self.change(env, |routing| {
            let events = events.iter().map(NativeCacheEvent::read).collect::<Outcome<Vec<_>>>()?;
            routing.apply(&name, &events.concat())
        })
    }

    /// The worker for a prompt; a load weight below 0 picks the longest prefix. `None` if there are no workers.
    #[napi]
    pub fn route(&self, env: &Env, keys: BigUint64Array, load_weight: f64) -> Result<Option<NativeRoute>> {
        self.change(env, |routing| routing.route(&keys, load_weight))
    }

    /// Like `route`, for keys as hexadecimal digits.
    #[napi]
    pub fn route_names(&self, env: &Env, keys: Vec<String>, load_weight: f64) -> Result<Option<NativeRoute>> {
        self.change(env, |routing| {
            let keys = keys.iter().map(|key| short(key)).collect::<Outcome<Vec<_>>>()?;
            routing.route(&keys, load_weight)
        })
    }

    /// The number of blocks that each worker has cached of a prompt, longest prefix first. Workers without a hit are
    /// left out.
    #[napi]
    pub fn lengths(&self, env: &Env, keys: Vec<String>) -> Result<Vec<NativeRoute>> {
        self.change(env, |routing| {
            let keys = keys.iter().map(|key| short(key)).collect::<Outcome<Vec<_>>>()?;
            let mut lengths = Vec::new();
            routing.index.lengths(&keys, &mut lengths);
            routing.check.found(&keys, lengths.first().map_or(0, |longest| longest.blocks));
            let shown = lengths.into_iter().map(|of| NativeRoute {
                worker: routing.name(of.worker),
                blocks: of.blocks as u32,
                cost: 0.0,
            });
            Ok(shown.collect())
        })
    }

    /// Returns true once if prompts get no hits because workers compute different block keys.
    #[napi]
    pub fn take_difference(&self, env: &Env) -> Result<bool> {
        self.change(env, |routing| Ok(routing.check.take_difference()))
    }

    #[napi]
    pub fn usage(&self, env: &Env) -> Result<Vec<f64>> {
        self.change(env, |routing| {
            let usage = routing.index.usage();
            Ok(vec![usage.workers as f64, usage.blocks as f64, usage.bytes as f64])
        })
    }

    #[napi]
    pub fn dispose(&mut self, env: &Env) {
        self.routing.dispose(env, |_| ());
    }

    fn change<T>(&self, env: &Env, work: impl FnOnce(&mut Routing) -> Outcome<T>) -> Result<T> {
        self.routing.read(env, |shared| locked(shared, work))
    }
}

impl Routing {
    fn route(&mut self, keys: &[u64], load_weight: f64) -> Outcome<Option<NativeRoute>> {
        let policy = if load_weight < 0.0 { Policy::LongestPrefix } else { Policy::Cost { load_weight } };
        let choice = self.index.choose(keys, policy)?;
        if self.check.is_open() {
            // The cheapest worker may have fewer blocks than another, so the check uses the best match.
            self.check.found(keys, self.index.find(keys).blocks);
        }
        Ok(choice.map(|choice| NativeRoute {
            worker: self.name(choice.worker),
            blocks: choice.blocks as u32,
            cost: choice.cost,
        }))
    }
}
