//! Tiers below memory: a store of entries, and what is known to lie there.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use kvtide_tensor::Descent;

use super::counts::Counts;
use super::options::{LowerOptions, LowerPlace, Policy};
use crate::entry::StoreKey;
use crate::folder::Folder;

/// A store of entries, which are looked at before they are believed: calls for many keys each, none of which fails.
pub trait EntryStore: Send + Sync + std::fmt::Debug {
    /// The entries of keys, in their order: nothing where there is none, where it is longer than `bytes_max`, or where it cannot be
    /// had before the deadline.
    fn get_many(&self, keys: &[StoreKey], bytes_max: usize, deadline: Instant) -> Vec<Option<Vec<u8>>>;

    /// Whether there are entries of keys, as far as that is known before the deadline.
    fn has_many(&self, keys: &[StoreKey], deadline: Instant) -> Vec<bool>;

    /// Adds entries, unless they are there. Answers how many of them are certainly there now.
    fn put_many(&self, entries: &[(StoreKey, Vec<u8>)], deadline: Instant) -> usize;

    /// Removes entries that were found to be damaged.
    fn remove_many(&self, keys: &[StoreKey], deadline: Instant);

    /// Called once, on the thread that writes, before anything is written: for what takes long.
    fn begin(&self) {}

    /// The entries that it has let go of since the last call, as far as it knows.
    fn take_removed(&self) -> Vec<StoreKey> {
        Vec::new()
    }

    /// The bytes of entries that it keeps, where it knows: for statistics.
    fn bytes(&self) -> Option<u64> {
        None
    }

    /// For how long it is not asked yet, unless it can be reached, as far as is known: nothing is copied for it meanwhile. Zero where
    /// a small question would find out whether it is there again.
    fn unavailable_for(&self) -> Option<Duration> {
        None
    }
}

impl EntryStore for Folder {
    fn begin(&self) {
        self.tidy();
    }

    fn take_removed(&self) -> Vec<StoreKey> {
        self.take_evicted()
    }

    fn bytes(&self) -> Option<u64> {
        Some(self.counted_bytes())
    }

    fn get_many(&self, keys: &[StoreKey], bytes_max: usize, deadline: Instant) -> Vec<Option<Vec<u8>>> {
        let get = |key| if Instant::now() < deadline { self.get_many(&[key], bytes_max).pop().flatten() } else { None };
        keys.iter().copied().map(get).collect()
    }

    fn has_many(&self, keys: &[StoreKey], _: Instant) -> Vec<bool> {
        self.has_many(keys)
    }

    fn put_many(&self, entries: &[(StoreKey, Vec<u8>)], _: Instant) -> usize {
        let entries: Vec<(StoreKey, &[u8])> = entries.iter().map(|(key, bytes)| (*key, &bytes[..])).collect();
        match self.put_many(&entries) {
            Ok(()) => entries.len(),
            // The disk is full, or somebody took the folder away: what is not there is a miss.
            Err(_) => self
                .has_many(&entries.iter().map(|(key, _)| *key).collect::<Vec<_>>())
                .into_iter()
                .filter(|is| *is)
                .count(),
        }
    }

    fn remove_many(&self, keys: &[StoreKey], _: Instant) {
        self.remove_many(keys);
    }
}

/// A store that others run, as a tier.
#[derive(Debug)]
pub struct SharedStore {
    /// The store.
    pub store: Arc<dyn kvtide_remote::Store>,
    /// What stands behind the keys: those whose entries are made otherwise, with another secret for instance, have another.
    pub suffix: String,
}

impl SharedStore {
    fn name(&self, key: &StoreKey) -> String {
        format!("{key}{}", self.suffix)
    }

    fn names(&self, keys: &[StoreKey]) -> Vec<String> {
        keys.iter().map(|key| self.name(key)).collect()
    }
}

impl EntryStore for SharedStore {
    fn get_many(&self, keys: &[StoreKey], bytes_max: usize, deadline: Instant) -> Vec<Option<Vec<u8>>> {
        self.store.get_many(&self.names(keys), bytes_max, deadline)
    }

    fn has_many(&self, keys: &[StoreKey], deadline: Instant) -> Vec<bool> {
        self.store.has_many(&self.names(keys), deadline)
    }

    fn put_many(&self, entries: &[(StoreKey, Vec<u8>)], deadline: Instant) -> usize {
        let entries: Vec<(String, &[u8])> = entries.iter().map(|(key, bytes)| (self.name(key), &bytes[..])).collect();
        self.store.put_many(&entries, deadline)
    }

    fn remove_many(&self, keys: &[StoreKey], deadline: Instant) {
        self.store.remove_many(&self.names(keys), deadline);
    }

    fn unavailable_for(&self) -> Option<Duration> {
        self.store.unavailable_for()
    }
}

/// How many keys are remembered as being there.
const KNOWN_MAX: usize = 1 << 17;

/// A tier below memory.
#[derive(Debug)]
pub(super) struct Lower {
    pub name: &'static str,
    pub place: LowerPlace,
    pub policy: Policy,
    pub counts: Counts,
    /// Keys of blocks that went there.
    known: Mutex<HashSet<StoreKey>>,
    /// Whether its caller, where only the caller reaches it, can reach it.
    pub is_reachable: AtomicBool,
}

impl Lower {
    pub fn new(options: LowerOptions) -> Self {
        let LowerOptions { name, place, policy } = options;
        let is_reachable = AtomicBool::new(true);
        Lower { name, place, policy, counts: Counts::default(), known: Mutex::default(), is_reachable }
    }

    pub fn store(&self) -> Option<&Arc<dyn EntryStore>> {
        match &self.place {
            LowerPlace::Store(store) => Some(store),
            LowerPlace::Caller => None,
        }
    }

    /// Whether it can be reached, as far as is known, or whoever writes to it would find out: where not, nothing goes there.
    pub fn is_worth(&self) -> bool {
        match self.store() {
            Some(store) => store.unavailable_for().is_none_or(|pause| pause.is_zero()),
            None => self.is_reachable.load(Ordering::Relaxed),
        }
    }

    /// Whether a block that leaves the cache goes there. What another tier lets go of is not asked here.
    pub fn wants(&self, key: &StoreKey, why: Descent) -> bool {
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner).contains(key);
        self.policy.wants(why, why != Descent::Named && known())
    }

    /// Notes that blocks are there, or on their way.
    pub fn note(&self, key: StoreKey) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= KNOWN_MAX {
            known.clear();
        }
        known.insert(key);
    }

    /// Notes that blocks are not there.
    pub fn unnote(&self, keys: &[StoreKey]) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        keys.iter().for_each(|key| {
            known.remove(key);
        });
    }
}
