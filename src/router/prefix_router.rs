//! The router: workers by their names, an index of what each has, and those whose events are followed over the network.
//!
//! Events of a worker that is [followed](super::worker_events) go into the index on another thread: a look-up waits for one batch at most.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kvtide_core::Error;
use kvtide_router::{BlockHash, Event, Policy, RemovedBlocks, StoredBlocks, WorkerFeed, WorkerId, WorkerIndex};
use napi::bindgen_prelude::BigUint64Array;
use napi::{Env, Result};
use napi_derive::napi;

use crate::border::handle::Handle;
use crate::border::refusal::{Outcome, Refusal};

impl From<kvtide_router::Error> for Refusal {
    fn from(error: kvtide_router::Error) -> Self {
        Refusal { code: error.code(), message: error.to_string(), details: error.details() }
    }
}

/// A worker: its place in the index, and how its events are read.
pub(super) struct Worker {
    pub(super) feed: WorkerFeed,
    /// Which of the workers that had this name it is: what an earlier one still sends does not count.
    #[cfg_attr(not(feature = "net"), expect(dead_code, reason = "only those that are followed are told apart"))]
    pub(super) number: u64,
}

#[derive(Default)]
pub(super) struct Routing {
    pub(super) index: WorkerIndex,
    pub(super) workers: HashMap<String, Worker>,
    names: Vec<String>,
    made: u64,
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
        events.iter().try_for_each(|event| worker.feed.apply_event(&mut self.index, event))?;
        Ok(())
    }

    fn name(&self, worker: WorkerId) -> String {
        self.names.get(worker.index()).cloned().unwrap_or_default()
    }
}

pub(super) type Shared = Arc<Mutex<Routing>>;

pub(super) fn lock(shared: &Shared) -> MutexGuard<'_, Routing> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where a prompt goes.
#[napi(object, object_from_js = false)]
pub struct NativeRoute {
    pub worker: String,
    pub blocks: u32,
    pub cost: f64,
}

/// An event of a cache, as JavaScript has it.
#[napi(object, object_to_js = false)]
pub struct NativeCacheEvent {
    #[napi(ts_type = "'stored' | 'removed' | 'cleared'")]
    pub kind: String,
    #[napi(ts_type = "string | undefined")]
    pub key: Option<String>,
    #[napi(ts_type = "string | undefined")]
    pub parent: Option<String>,
}

/// The first eight bytes of a name in digits.
fn short(digits: &str) -> Outcome<u64> {
    let first = digits.get(..16).filter(|_| digits.len() == 64);
    let number = first.and_then(|first| u64::from_str_radix(first, 16).ok());
    let number = number.ok_or_else(|| Error::argument("key", digits, "64 hexadecimal digits"))?;
    Ok(number.swap_bytes())
}

impl NativeCacheEvent {
    fn read(&self) -> Outcome<Event> {
        let key = || short(self.key.as_deref().unwrap_or_default()).map(BlockHash::from);
        Ok(match &*self.kind {
            "stored" => Event::Stored(StoredBlocks {
                hashes: vec![key()?],
                parent: self.parent.as_deref().map(short).transpose()?.map(BlockHash::from),
                ..StoredBlocks::default()
            }),
            "removed" => Event::Removed(RemovedBlocks { hashes: vec![key()?], ..RemovedBlocks::default() }),
            _ => Event::Cleared,
        })
    }
}

#[napi]
pub struct NativePrefixRouter {
    pub(super) routing: Handle<Shared>,
}

#[napi]
impl NativePrefixRouter {
    #[napi(constructor)]
    pub fn new() -> Self {
        NativePrefixRouter { routing: Handle::new("PrefixRouter", Shared::default()) }
    }

    /// Whether the worker is new.
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

    /// Takes in events, all of them or none.
    #[napi]
    pub fn apply(&self, env: &Env, name: String, events: Vec<NativeCacheEvent>) -> Result<()> {
        self.change(env, |routing| {
            let events = events.iter().map(NativeCacheEvent::read).collect::<Outcome<Vec<_>>>()?;
            routing.apply(&name, &events)
        })
    }

    /// The worker for a prompt; a load weight below 0 asks for the longest prefix. None where there are no workers.
    #[napi]
    pub fn route(&self, env: &Env, keys: BigUint64Array, load_weight: f64) -> Result<Option<NativeRoute>> {
        self.change(env, |routing| routing.route(&keys, load_weight))
    }

    /// The same for names in digits.
    #[napi]
    pub fn route_names(&self, env: &Env, keys: Vec<String>, load_weight: f64) -> Result<Option<NativeRoute>> {
        self.change(env, |routing| {
            let keys = keys.iter().map(|key| short(key)).collect::<Outcome<Vec<_>>>()?;
            routing.route(&keys, load_weight)
        })
    }

    /// What each worker has of a prompt that has anything, in blocks, the longest first.
    #[napi]
    pub fn lengths(&self, env: &Env, keys: Vec<String>) -> Result<Vec<NativeRoute>> {
        self.change(env, |routing| {
            let keys = keys.iter().map(|key| short(key)).collect::<Outcome<Vec<_>>>()?;
            let mut lengths = Vec::new();
            routing.index.lengths(&keys, &mut lengths);
            let shown = lengths.into_iter().map(|of| NativeRoute {
                worker: routing.name(of.worker),
                blocks: of.blocks as u32,
                cost: 0.0,
            });
            Ok(shown.collect())
        })
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
        self.routing.read(env, |shared| work(&mut lock(shared)))
    }
}

impl Routing {
    fn route(&self, keys: &[u64], load_weight: f64) -> Outcome<Option<NativeRoute>> {
        let policy = if load_weight < 0.0 { Policy::LongestPrefix } else { Policy::Cost { load_weight } };
        let choice = self.index.choose(keys, policy)?;
        Ok(choice.map(|choice| NativeRoute {
            worker: self.name(choice.worker),
            blocks: choice.blocks as u32,
            cost: choice.cost,
        }))
    }
}
