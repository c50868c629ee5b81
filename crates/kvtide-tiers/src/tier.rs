//! A tier below memory: its store, the envelope of its entries, and the keys that are known to exist.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kvtide_tensor::pages::Descent;

use crate::caller::CallerGate;
use crate::entry::StoreKey;
use crate::envelope::Envelope;
use crate::health::{Event, Health};
use crate::options::{Access, Policy, TierOptions};
use crate::stats::Counts;

/// The most keys to remember as existing.
const KNOWN_MAX: usize = 1 << 17;

/// The side that calls a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// Threads of this crate.
    Direct,
    /// The caller.
    Caller,
}

/// A tier below memory.
#[derive(Debug)]
pub(crate) struct Tier {
    pub name: &'static str,
    pub access: Access,
    pub envelope: Envelope,
    suffix: String,
    pub policy: Policy,
    pub counts: Counts,
    /// The keys of blocks that were offloaded to it.
    known: Mutex<HashSet<StoreKey>>,
    /// The number of the store's events that were read here. Other caches of the store have counts of their own.
    events_seen: Mutex<u64>,
}

impl Tier {
    pub fn new(options: TierOptions) -> Self {
        let TierOptions { name, access, envelope, policy } = options;
        let suffix = envelope.suffix();
        let events_seen = match &access {
            Access::Direct(store) => store.events_begin(),
            Access::Caller(_) => 0,
        };
        let (counts, known) = (Counts::default(), Mutex::default());
        Tier { name, access, envelope, suffix, policy, counts, known, events_seen: events_seen.into() }
    }

    /// True if this side calls the tier's store.
    pub fn is_of(&self, side: Side) -> bool {
        matches!((&self.access, side), (Access::Direct(_), Side::Direct) | (Access::Caller(_), Side::Caller))
    }

    pub fn caller_gate(&self) -> Option<Arc<CallerGate>> {
        match &self.access {
            Access::Direct(_) => None,
            Access::Caller(gate) => Some(gate.clone()),
        }
    }

    /// True if the caller's store can remove entries.
    pub fn can_remove(&self) -> bool {
        matches!(&self.access, Access::Caller(gate) if gate.can_remove())
    }

    /// Returns the name of an entry in the store.
    pub fn entry_name(&self, key: &StoreKey) -> String {
        format!("{key}{}", self.suffix)
    }

    pub fn entry_names(&self, keys: &[StoreKey]) -> Vec<String> {
        keys.iter().map(|key| self.entry_name(key)).collect()
    }

    /// Returns the time until the store may be asked again, if it is unreachable.
    pub fn unavailable_for(&self) -> Option<Duration> {
        match &self.access {
            Access::Direct(store) => store.unavailable_for(),
            Access::Caller(gate) => gate.unavailable_for(),
        }
    }

    /// True if the store is reachable as far as is known, or if a write would probe it.
    pub fn is_worth(&self) -> bool {
        self.unavailable_for().is_none_or(|pause| pause.is_zero())
    }

    pub fn health(&self) -> Option<Health> {
        match &self.access {
            Access::Direct(store) => store.health(),
            Access::Caller(gate) => Some(gate.health()),
        }
    }

    pub fn next_event(&self) -> Option<Event> {
        let mut seen = self.events_seen.lock().unwrap_or_else(PoisonError::into_inner);
        match &self.access {
            Access::Direct(store) => store.event_behind(&mut seen),
            Access::Caller(gate) => gate.event_behind(&mut seen),
        }
    }

    /// True if the tier takes a block that leaves the cache. Evictions from the tier above are decided elsewhere.
    pub fn wants(&self, key: &StoreKey, why: Descent) -> bool {
        self.policy.wants(why, why != Descent::Named && self.known().contains(key))
    }

    fn known(&self) -> MutexGuard<'_, HashSet<StoreKey>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a block exists in the tier, or is queued for it.
    pub fn note(&self, key: StoreKey) {
        let mut known = self.known();
        if known.len() >= KNOWN_MAX {
            known.clear();
        }
        known.insert(key);
    }

    /// Notes that blocks do not exist in the tier.
    pub fn unnote(&self, keys: &[StoreKey]) {
        let mut known = self.known();
        keys.iter().for_each(|key| {
            known.remove(key);
        });
    }

    /// Counts blocks as dropped; they may be offloaded again.
    pub fn lose(&self, keys: &[StoreKey]) {
        Counts::add(&self.counts.dropped, keys.len());
        self.unnote(keys);
    }
}
