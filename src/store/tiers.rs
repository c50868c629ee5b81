//! Tiers below a cache: attached on its thread, asked on threads of the runtime's pool.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use kvtide_store::{
    Bring, EntryStore, Folder, Lookup, LowerOptions, LowerPlace, MemoryOptions, Pending, Policy, StoreKey, TierOptions,
    TierSet, TierStats, Tiers,
};
use kvtide_tensor::Error;
use napi::bindgen_prelude::AsyncTask;
use napi::{Env, Result};
use napi_derive::napi;

use super::envelope::{Envelope, NativeEnvelope};
use super::shared_store::NativeSharedStore;
use crate::border::argument::{ArrayArg, count, whole};
use crate::border::external_array::ExternalArray;
use crate::border::handle::{budget, guard};
use crate::border::refusal::Outcome;
use crate::border::task::PoolTask;
use crate::sequences::cache::NativePagedKvCache;
use crate::sequences::prefix::{NativeExtra, Prompt};

/// What lies below a cache.
#[napi(object, object_to_js = false)]
pub struct NativeTierOptions {
    pub memory: Option<NativeTier>,
    pub disk: Option<NativeTier>,
    pub store: Option<NativeTier>,
    pub pending_bytes: f64,
}

/// One of them.
#[napi(object, object_to_js = false)]
pub struct NativeTier {
    #[napi(ts_type = "'eviction' | 'commit' | 'second-use'")]
    pub policy: String,
    /// 0 where it has no limit.
    pub limit_bytes: f64,
    pub path: Option<String>,
}

impl NativeTier {
    fn policy(&self) -> Outcome<Policy> {
        match &*self.policy {
            "eviction" => Ok(Policy::Eviction),
            "commit" => Ok(Policy::Commit),
            "second-use" => Ok(Policy::SecondUse),
            other => Err(Error::argument("policy", other, "'eviction', 'commit' or 'second-use'").into()),
        }
    }

    fn limit(&self) -> Outcome<u64> {
        whole("limitBytes", self.limit_bytes)
    }
}

/// What a tier holds, and what happened there.
#[napi(object, object_from_js = false)]
pub struct NativeTierStats {
    pub name: &'static str,
    pub blocks: f64,
    pub bytes: f64,
    pub stored: f64,
    pub dropped: f64,
    pub found: f64,
    pub damaged: f64,
}

impl From<(&'static str, TierStats)> for NativeTierStats {
    fn from((name, of): (&'static str, TierStats)) -> Self {
        let [blocks, bytes, stored, dropped, found, damaged] =
            [of.blocks, of.bytes, of.stored, of.dropped, of.found, of.damaged].map(|number| number as f64);
        NativeTierStats { name, blocks, bytes, stored, dropped, found, damaged }
    }
}

#[napi]
pub struct NativeTiers {
    tiers: Tiers,
    /// By their places.
    #[cfg_attr(not(feature = "net"), expect(dead_code, reason = "events alone are told by their names"))]
    names: Vec<&'static str>,
    envelope: Arc<Envelope>,
}

#[cfg(feature = "net")]
impl NativeTiers {
    pub(crate) fn follow(&self, group: usize) {
        self.tiers.follow(group);
    }

    /// What happened in the tiers since the last call. What was too much to be kept is not told: others believe that it is there or is not.
    pub(crate) fn events(&self) -> Vec<kvtide_store::TierEvent> {
        self.tiers.take_events().0
    }

    /// What a tier is called, by its place.
    pub(crate) fn name(&self, place: usize) -> &'static str {
        self.names.get(place).copied().unwrap_or_default()
    }
}

/// The moment so many milliseconds from now.
fn within(milliseconds: f64) -> Outcome<Instant> {
    Ok(Instant::now() + Duration::from_millis(count("deadline", milliseconds)?.into()))
}

#[napi]
impl NativePagedKvCache {
    /// Puts tiers below the cache: `store` is one that is called from here, `envelope` what the entries of the caller's own are put into.
    #[napi]
    pub fn attach_tiers(
        &mut self,
        env: &Env,
        options: NativeTierOptions,
        store: Option<&NativeSharedStore>,
        envelope: &NativeEnvelope,
    ) -> Result<NativeTiers> {
        self.cache.change(env, |cache| {
            let memory = match &options.memory {
                Some(tier) => Some(MemoryOptions { limit_bytes: tier.limit()?, policy: tier.policy()? }),
                None => None,
            };
            let mut lower = Vec::new();
            if let Some(tier) = &options.disk {
                let limit = match tier.limit()? {
                    0 => u64::MAX,
                    limit => limit,
                };
                let path = tier.path.as_deref().unwrap_or_default();
                let folder: Arc<dyn EntryStore> = Arc::new(Folder::open_untidied(Path::new(path), limit)?);
                lower.push(LowerOptions { name: "disk", place: LowerPlace::Store(folder), policy: tier.policy()? });
            }
            if let Some(tier) = &options.store {
                let place = match store {
                    Some(store) => LowerPlace::Store(Arc::new(envelope.wrap(store.store()?)?)),
                    None => LowerPlace::Caller,
                };
                lower.push(LowerOptions { name: "store", place, policy: tier.policy()? });
            }
            let pending_bytes = whole("pendingBytes", options.pending_bytes)?;
            let tiers = TierOptions { memory, lower, pending_bytes, budget: Some(budget()) };
            let names = std::iter::once("memory").chain(tiers.lower.iter().map(|lower| lower.name)).collect();
            Ok(NativeTiers { tiers: Tiers::attach(cache, tiers)?, names, envelope: envelope.shared() })
        })
    }

    /// Hands down what got a name, until so many bytes were copied, and answers whether there is more.
    #[napi]
    pub fn hand_down(&mut self, env: &Env, most: f64) -> Result<bool> {
        self.cache.change(env, |cache| Ok(cache.hand_down(whole("most", most)? as usize)))
    }
}

#[napi]
impl NativeTiers {
    #[napi]
    pub fn stats(&self) -> Vec<NativeTierStats> {
        self.tiers.stats().into_iter().map(NativeTierStats::from).collect()
    }

    /// Waits until what went down is where it belongs; answers whether it is.
    #[napi(ts_return_type = "Promise<boolean>")]
    pub fn flush(&self, env: &Env, milliseconds: f64) -> Result<AsyncTask<PoolTask<bool, bool>>> {
        guard(env, || {
            let (deadline, flush) = (within(milliseconds)?, self.tiers.flusher());
            Ok(PoolTask::of(move || Ok(flush(deadline)), |is_done| is_done))
        })
    }

    /// Begins to look for a prompt in the tiers of these places.
    #[napi]
    pub fn look_up(
        &self,
        env: &Env,
        cache: &mut NativePagedKvCache,
        tokens: &[u32],
        salt: &[u8],
        salt_from: f64,
        extra: Option<Vec<NativeExtra>>,
        places: Vec<u32>,
    ) -> Result<NativeLookup> {
        cache.cache.change(env, |cache| {
            let prompt = Prompt::read(salt, salt_from, extra)?;
            let lookup = self.tiers.look_up(cache, tokens, prompt.options(), TierSet::of(&places))?;
            Ok(NativeLookup { lookup: Arc::new(Mutex::new(Some(lookup))), envelope: self.envelope.clone() })
        })
    }

    /// The cache has ended: nothing goes down any more.
    #[napi]
    pub fn end(&self) {
        self.tiers.end();
    }

    /// Says whether the caller's own store can be reached: while it cannot, no block is copied for it.
    #[napi]
    pub fn set_reachable(&self, is_reachable: bool) {
        self.tiers.set_reachable(is_reachable);
    }

    /// Blocks for the caller's own store.
    #[napi]
    pub fn take_pending(&self) -> Option<NativePending> {
        let pending = self.tiers.take_pending()?;
        Some(NativePending { pending: Arc::new(Mutex::new(Some(pending))), envelope: self.envelope.clone() })
    }
}

/// What somebody works with; nobody else has it meanwhile.
type Shared<T> = Arc<Mutex<Option<T>>>;

fn with<T, R>(shared: &Shared<T>, work: impl FnOnce(&mut T) -> Outcome<R>) -> Outcome<R> {
    let mut held = shared.lock().unwrap_or_else(PoisonError::into_inner);
    work(held.as_mut().ok_or(Error::Disposed { object: "match" })?)
}

fn take<T>(shared: &Shared<T>) -> Outcome<T> {
    let taken = shared.lock().unwrap_or_else(PoisonError::into_inner).take();
    taken.ok_or_else(|| Error::Disposed { object: "match" }.into())
}

/// A prompt that is looked for.
#[napi]
pub struct NativeLookup {
    lookup: Shared<Lookup>,
    envelope: Arc<Envelope>,
}

#[napi]
impl NativeLookup {
    /// Asks the tiers that are called from here, for so many milliseconds.
    #[napi(ts_return_type = "Promise<void>")]
    pub fn ask(&self, env: &Env, milliseconds: f64) -> Result<AsyncTask<PoolTask<(), ()>>> {
        guard(env, || {
            let (deadline, lookup) = (within(milliseconds)?, self.lookup.clone());
            let ask = move || {
                with(&lookup, |lookup| {
                    lookup.ask(deadline);
                    Ok(())
                })
            };
            Ok(PoolTask::of(ask, |()| ()))
        })
    }

    /// What the caller's own store is to be asked for, in the prompt's order.
    #[napi]
    pub fn missing(&self, env: &Env) -> Result<Vec<String>> {
        guard(env, || with(&self.lookup, |lookup| Ok(self.envelope.names(&lookup.asked_of_caller()))))
    }

    /// Notes which of those the caller's store has.
    #[napi]
    pub fn note(&self, env: &Env, has: Vec<bool>) -> Result<()> {
        guard(env, || {
            with(&self.lookup, |lookup| {
                let keys = lookup.asked_of_caller().into_iter().zip(has).filter(|(_, has)| *has).map(|(key, _)| key);
                lookup.note(keys.collect::<Vec<_>>());
                Ok(())
            })
        })
    }

    /// Whether a tier has any of its blocks.
    #[napi]
    pub fn is_worth(&self, env: &Env) -> Result<bool> {
        guard(env, || with(&self.lookup, |lookup| Ok(lookup.is_worth())))
    }

    /// Takes blocks for what is to come.
    #[napi]
    pub fn begin(
        &self,
        env: &Env,
        cache: &mut NativePagedKvCache,
        tokens: &[u32],
        salt: &[u8],
        salt_from: f64,
        extra: Option<Vec<NativeExtra>>,
    ) -> Result<NativeBring> {
        cache.cache.change(env, |cache| {
            let prompt = Prompt::read(salt, salt_from, extra)?;
            let bring = with(&self.lookup, |lookup| Ok(lookup.begin(cache, tokens, prompt.options())?))?;
            Ok(NativeBring { bring: Arc::new(Mutex::new(Some(bring))), envelope: self.envelope.clone() })
        })
    }
}

/// Blocks on their way back.
#[napi]
pub struct NativeBring {
    bring: Shared<Bring>,
    envelope: Arc<Envelope>,
}

impl NativeBring {
    fn get(&self) -> Outcome<Bring> {
        with(&self.bring, |bring| Ok(bring.clone()))
    }
}

#[napi]
impl NativeBring {
    /// Brings what the tiers have that are called from here, for so many milliseconds.
    #[napi(ts_return_type = "Promise<void>")]
    pub fn fetch(&self, env: &Env, milliseconds: f64) -> Result<AsyncTask<PoolTask<(), ()>>> {
        guard(env, || {
            let (deadline, bring) = (within(milliseconds)?, self.get()?);
            let fetch = move || {
                bring.fetch(deadline);
                Ok(())
            };
            Ok(PoolTask::of(fetch, |()| ()))
        })
    }

    /// What the caller's own store is to give, in the prompt's order.
    #[napi]
    pub fn asked(&self, env: &Env) -> Result<Vec<String>> {
        guard(env, || {
            let keys: Vec<StoreKey> = self.get()?.asked_of_caller().into_iter().map(|(key, _)| key).collect();
            Ok(self.envelope.names(&keys))
        })
    }

    /// The most bytes that one of those has.
    #[napi]
    pub fn bytes_max(&self, env: &Env) -> Result<f64> {
        guard(env, || {
            let most = self.get()?.asked_of_caller().into_iter().map(|(_, most)| most).max().unwrap_or(0);
            Ok(self.envelope.bytes_max(most) as f64)
        })
    }

    /// Takes the entry that the caller's store gave for the `at`th of these keys. Answers whether it is what was asked for.
    #[napi]
    pub fn accept(&self, env: &Env, at: f64, bytes: ArrayArg) -> Result<bool> {
        guard(env, || {
            let (bring, at) = (self.get()?, count("at", at)? as usize);
            let bytes = bytes.memory("value")?.bytes();
            Ok(bring.asked_of_caller().get(at).is_some_and(|(key, most)| {
                self.envelope.open(key, bytes, *most).is_some_and(|bytes| bring.accept(key, &bytes))
            }))
        })
    }

    /// Lets prompts find what came: how many blocks from each tier, by its place.
    #[napi]
    pub fn end(&self, env: &Env, cache: &mut NativePagedKvCache) -> Result<Vec<u32>> {
        cache.cache.change(env, |cache| {
            let came = self.get()?.end(cache)?;
            take(&self.bring)?;
            Ok(came)
        })
    }

    /// Gives the blocks back that nobody named.
    #[napi]
    pub fn dispose(&self) {
        let _ = take(&self.bring);
    }
}

/// Blocks for the caller's own store.
#[napi]
pub struct NativePending {
    pending: Shared<Pending>,
    envelope: Arc<Envelope>,
}

/// An entry of a store.
#[napi(object, object_from_js = false)]
pub struct NativeEntry {
    pub key: String,
    #[napi(ts_type = "Uint8Array")]
    pub value: ExternalArray,
}

#[napi]
impl NativePending {
    #[napi(ts_return_type = "Promise<NativeEntries>")]
    pub fn encode(&self) -> AsyncTask<PoolTask<Entries, NativeEntries>> {
        let (pending, envelope) = (self.pending.clone(), self.envelope.clone());
        PoolTask::of(move || with(&pending, |pending| Ok(envelope.close(pending.encode()))), NativeEntries::new)
    }

    /// Says whether they are there now.
    #[napi]
    pub fn settle(&self, env: &Env, is_there: bool) -> Result<()> {
        guard(env, || {
            take(&self.pending)?.settle(is_there);
            Ok(())
        })
    }
}

/// Entries under their keys.
type Entries = Vec<(String, Vec<u8>)>;

/// Entries that JavaScript takes one by one.
#[napi]
pub struct NativeEntries {
    entries: Entries,
}

impl NativeEntries {
    fn new(mut entries: Entries) -> Self {
        entries.reverse();
        NativeEntries { entries }
    }
}

#[napi]
impl NativeEntries {
    /// The next one.
    #[napi]
    pub fn next(&mut self) -> Option<NativeEntry> {
        let (key, value) = self.entries.pop()?;
        Some(NativeEntry { key, value: ExternalArray::bytes(value) })
    }
}
