//! The tiers of a cache: attached on its thread, which also offloads and restores.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvtide_tensor::Error;
use kvtide_tiers::{
    Access, CallerGate, Envelope, Folder, GuardOptions, Machine, MemoryOptions, Policy, TierOptions, TierSet,
    TierStats, Tiers, TiersOptions,
};
use napi::bindgen_prelude::{AsyncTask, Uint8Array};
use napi::{Env, Result};
use napi_derive::napi;

use super::driver::{Moving, NativeDriver, NativeStep};
use super::store::{NativeHealth, NativeStore, NativeStoreEvent};
use crate::border::argument::{count, whole};
use crate::border::handle::{budget, guard};
use crate::border::refusal::Outcome;
use crate::border::task::PoolTask;
use crate::sequences::cache::NativePagedKvCache;
use crate::sequences::prefix::{NativeExtra, Prompt};

/// The tiers of a cache.
#[napi(object, object_to_js = false)]
pub struct NativeTierOptions {
    pub memory: Option<NativeTier>,
    pub disk: Option<NativeTier>,
    pub store: Option<NativeTier>,
    pub pending_bytes: f64,
    /// The secret that seals entries of the store: 32 bytes.
    pub secret: Option<Uint8Array>,
    /// The bytes of each number in compressed entries; 0 if entries are not compressed.
    pub element_bytes: f64,
    /// True if the caller's own store can remove entries.
    pub can_remove: bool,
}

impl NativeTierOptions {
    fn envelope(&self) -> Outcome<Envelope> {
        let secret = self.secret.as_ref().map(|secret| {
            let wrong = |_| kvtide_core::Error::argument("secret.length", secret.len(), "32");
            <[u8; 32]>::try_from(&secret[..]).map_err(wrong)
        });
        let element_bytes = count("elementBytes", self.element_bytes)? as usize;
        Ok(Envelope::new(secret.transpose()?, (element_bytes > 0).then_some(element_bytes))?)
    }
}

/// One tier.
#[napi(object, object_to_js = false)]
pub struct NativeTier {
    #[napi(ts_type = "'eviction' | 'commit' | 'second-use'")]
    pub policy: String,
    /// 0 if it has no limit.
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

/// The content and the counts of a tier.
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
    /// The names of the tiers, by place.
    #[cfg_attr(not(feature = "net"), expect(dead_code, reason = "events alone are told by their names"))]
    names: Vec<&'static str>,
}

#[cfg(feature = "net")]
impl NativeTiers {
    pub(crate) fn follow(&self, groups: impl IntoIterator<Item = usize>) {
        self.tiers.follow(groups);
    }

    /// Returns the events since the last call. Lost events are not reported: followers keep their old state.
    pub(crate) fn events(&self) -> Vec<kvtide_tiers::TierEvent> {
        self.tiers.take_events().0
    }

    /// Returns the name of a tier, given its place.
    pub(crate) fn name(&self, place: usize) -> &'static str {
        self.names.get(place).copied().unwrap_or_default()
    }
}

/// The longest wait.
const LONGEST_MS: f64 = u32::MAX as f64;

/// Returns the time this many milliseconds from now; fractions count.
fn within(milliseconds: f64) -> Outcome<Instant> {
    if milliseconds.is_nan() || milliseconds < 0.0 {
        return Err(Error::argument("deadline", milliseconds, "milliseconds, 0 or more").into());
    }
    Ok(Instant::now() + Duration::from_secs_f64(milliseconds.min(LONGEST_MS) / 1000.0))
}

#[napi]
impl NativePagedKvCache {
    /// Attaches tiers to the cache; `store` is one that this crate calls, `undefined` if the caller calls its own.
    #[napi]
    pub fn attach_tiers(
        &mut self,
        env: &Env,
        options: NativeTierOptions,
        store: Option<&NativeStore>,
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
                let access = Access::Direct(Arc::new(Folder::open_untidied(Path::new(path), limit)?));
                lower.push(TierOptions { name: "disk", access, envelope: Envelope::default(), policy: tier.policy()? });
            }
            if let Some(tier) = &options.store {
                let access = match store {
                    Some(store) => Access::Direct(store.store()?),
                    None => Access::Caller(Arc::new(CallerGate::new(GuardOptions::default(), options.can_remove)?)),
                };
                lower.push(TierOptions {
                    name: "store",
                    access,
                    envelope: options.envelope()?,
                    policy: tier.policy()?,
                });
            }
            let pending_bytes = whole("pendingBytes", options.pending_bytes)?;
            let tiers = TiersOptions { memory, lower, pending_bytes, budget: Some(budget()) };
            let names = std::iter::once("memory").chain(tiers.lower.iter().map(|lower| lower.name)).collect();
            Ok(NativeTiers { tiers: Tiers::attach(cache, tiers)?, names })
        })
    }
}

/// A prompt that is being restored, and the first step of that.
#[napi(object, object_from_js = false)]
pub struct NativeRestoring {
    pub driver: NativeDriver,
    pub step: NativeStep,
}

/// The bits of an answer: more blocks are to be offloaded; blocks are queued for the caller's store; the caller's store
/// is unreachable.
const MORE: u32 = 1;
const QUEUED: u32 = 2;
const UNREACHABLE: u32 = 4;

#[napi]
impl NativeTiers {
    #[napi(catch_unwind)]
    pub fn stats(&self) -> Vec<NativeTierStats> {
        self.tiers.stats().into_iter().map(NativeTierStats::from).collect()
    }

    /// Returns the health of the store.
    #[napi(catch_unwind)]
    pub fn health(&self) -> Option<NativeHealth> {
        self.tiers.health().as_ref().map(NativeHealth::from)
    }

    /// Returns the next unread event of the store.
    #[napi(catch_unwind)]
    pub fn next_event(&self) -> Option<NativeStoreEvent> {
        self.tiers.next_event().map(NativeStoreEvent::from)
    }

    /// Offloads newly hashed blocks, until this many bytes were copied. Returns bits: 1 if there are more, 2 if blocks
    /// are queued for the caller's store, 4 if that store is unreachable.
    #[napi]
    pub fn offload(&self, env: &Env, cache: &mut NativePagedKvCache, most: f64) -> Result<u32> {
        cache.cache.change(env, |cache| {
            let has_more = cache.hand_down(whole("most", most)? as usize);
            let (is_queued, is_unreachable) = (self.tiers.has_queued_for_caller(), self.tiers.is_caller_unreachable());
            let bit = |is: bool, bit: u32| if is { bit } else { 0 };
            Ok(bit(has_more, MORE) | bit(is_queued, QUEUED) | bit(is_unreachable, UNREACHABLE))
        })
    }

    /// Waits until all blocks offloaded so far are written. Resolves to true if they are.
    #[napi(ts_return_type = "Promise<boolean>")]
    pub fn flush(&self, env: &Env, milliseconds: f64) -> Result<AsyncTask<PoolTask<bool, bool>>> {
        guard(env, || {
            let (deadline, flush) = (within(milliseconds)?, self.tiers.flusher());
            Ok(PoolTask::of(move || Ok(flush(deadline)), |is_done| is_done))
        })
    }

    /// Begins to restore a prompt. `limits` has the milliseconds until the deadline, how often prefixes had been
    /// forgotten when the prompt was requested (-1: as often as now), and the places of the tiers.
    #[napi]
    pub fn restore(
        &self,
        env: &Env,
        cache: &mut NativePagedKvCache,
        tokens: &[u32],
        salt: &[u8],
        salt_from: f64,
        extra: Option<Vec<NativeExtra>>,
        limits: Vec<f64>,
    ) -> Result<NativeRestoring> {
        let restore = cache.cache.change(env, |cache| {
            let [milliseconds, since, places @ ..] = &limits[..] else {
                return Err(Error::argument("limits", limits.len(), "two numbers, and places").into());
            };
            let places = places.iter().map(|place| count("place", *place)).collect::<Outcome<Vec<_>>>()?;
            let (prompt, deadline) = (Prompt::read(salt, salt_from, extra)?, within(*milliseconds)?);
            let mut restore = self.tiers.restore(cache, tokens, prompt.options(), TierSet::of(&places), deadline)?;
            if *since >= 0.0 {
                restore.since(whole("since", *since)?);
            }
            Ok(restore)
        })?;
        let driver = NativeDriver::new(Moving::Restore(restore), None, self.tiers.caller_gate());
        let step = driver.advance(env, cache)?;
        Ok(NativeRestoring { driver, step })
    }

    /// Returns a driver that writes the blocks queued for the caller's store.
    #[napi(catch_unwind)]
    pub fn writer(&self) -> NativeDriver {
        let writer = self.tiers.writer();
        let patience = writer.patience();
        NativeDriver::new(Moving::Writer(writer), patience, self.tiers.caller_gate())
    }

    /// Returns a driver that finds out when the caller's store is reachable again.
    #[napi(catch_unwind)]
    pub fn prober(&self) -> NativeDriver {
        let prober = self.tiers.prober();
        let patience = prober.patience();
        NativeDriver::new(Moving::Prober(prober), patience, self.tiers.caller_gate())
    }

    /// Ends offloading, because the cache has ended.
    #[napi(catch_unwind)]
    pub fn end(&self) {
        self.tiers.end();
    }
}
