//! The tiers of one cache.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use kvtide_files::{Error, Result};
use kvtide_tensor::PagedKvCache;

use crate::caller::CallerGate;
use crate::events::TierEvent;
use crate::health::{Event, Health};
use crate::inner::Inner;
use crate::options::{Access, TiersOptions};
use crate::stats::TierStats;
use crate::tier::{Side, Tier};
use crate::writer::{Prober, Writer};

/// The tiers of a cache. Blocks are offloaded until this is dropped or the cache ends; entries in a folder or a store
/// remain.
#[derive(Debug)]
pub struct Tiers {
    pub(crate) inner: Arc<Inner>,
}

impl Tiers {
    /// Attaches tiers to a cache. Refused if the cache has tiers already, or if there are lower tiers and its prefix
    /// key was made at random: no other process could find its blocks.
    pub fn attach(cache: &mut PagedKvCache, options: TiersOptions) -> Result<Self> {
        if !options.lower.is_empty() && cache.namer().own_key().is_some() {
            let expected = "32 bytes, the same in all processes that share blocks: block keys depend on it";
            return Err(Error::argument("prefixKey", "none", expected));
        }
        let inner = Arc::new(Inner::new(cache, options));
        cache.set_below(inner.clone())?;
        if inner.lower.iter().any(|tier| tier.is_of(Side::Direct)) {
            let writer = Writer::new(inner.clone(), Side::Direct);
            let started = std::thread::Builder::new().name("kvtide-tiers".to_owned()).spawn(move || writer.run());
            started.map_err(|reason| Error::io("start", "a thread".as_ref(), reason))?;
        }
        Ok(Tiers { inner })
    }

    /// Waits until all blocks offloaded so far are written, the deadline passes, or the tiers end. Returns true if all
    /// are written.
    #[must_use]
    pub fn flush(&self, deadline: Instant) -> bool {
        self.inner.queue.drained(deadline)
    }

    /// As [`Tiers::flush`], for another thread.
    pub fn flusher(&self) -> impl FnOnce(Instant) -> bool + Send + 'static + use<> {
        let inner = self.inner.clone();
        move |deadline| inner.queue.drained(deadline)
    }

    /// Ends offloading. The offload queue and the memory tier are freed at once, even if a store hangs.
    pub fn end(&self) {
        let inner = &self.inner;
        inner.has_ended.store(true, Ordering::Release);
        inner.is_forgotten.store(true, Ordering::Release);
        inner.queue.end();
        if let Some(top) = &inner.top {
            top.memory.end();
        }
        inner.waiters.wake();
    }

    /// Returns the statistics of each tier, with its name.
    #[must_use]
    pub fn stats(&self) -> Vec<(&'static str, TierStats)> {
        let top = self.inner.top.iter().map(|top| {
            let (blocks, bytes) = top.memory.usage();
            ("memory", top.counts.stats(blocks, bytes))
        });
        let bytes = |tier: &Tier| match &tier.access {
            Access::Direct(store) => store.bytes().unwrap_or(0),
            Access::Caller(_) => 0,
        };
        top.chain(self.inner.lower.iter().map(|tier| (tier.name, tier.counts.stats(0, bytes(tier))))).collect()
    }

    /// Returns the health of the store that is reached over the network or by the caller.
    #[must_use]
    pub fn health(&self) -> Option<Health> {
        self.inner.lower.iter().find_map(Tier::health)
    }

    /// Returns the next unread change of its reachability.
    pub fn next_event(&self) -> Option<Event> {
        self.inner.lower.iter().find_map(Tier::next_event)
    }

    /// Logs, from now on, what happens in the tiers to blocks of these groups of layers.
    pub fn follow(&self, groups: impl IntoIterator<Item = usize>) {
        self.inner.log.follow(groups.into_iter().map(|group| group as u16).collect());
    }

    /// Returns the events since the last call, in order, and true if some were lost. Entries that other processes
    /// remove from a folder cause no events.
    #[must_use]
    pub fn take_events(&self) -> (Vec<TierEvent>, bool) {
        self.inner.log.take()
    }

    /// Returns the gate of the store that the caller calls, if a tier has one.
    #[must_use]
    pub fn caller_gate(&self) -> Option<Arc<CallerGate>> {
        self.inner.caller().and_then(|tier| self.inner.lower[tier - 1].caller_gate())
    }

    /// True if the caller's store is unreachable: a prober finds out when it is reachable again.
    #[must_use]
    pub fn is_caller_unreachable(&self) -> bool {
        self.inner.lower.iter().any(|tier| tier.is_of(Side::Caller) && tier.unavailable_for().is_some())
    }

    /// True if blocks are queued for the caller's store: a writer would write them.
    #[must_use]
    pub fn has_queued_for_caller(&self) -> bool {
        self.inner.queue.has_any(|tier| self.inner.lower[tier].is_of(Side::Caller))
    }

    /// Creates a machine that writes the blocks queued for the caller's store, until there are none.
    #[must_use]
    pub fn writer(&self) -> Writer {
        Writer::new(self.inner.clone(), Side::Caller)
    }

    /// Creates a machine that probes the caller's store, as often as it may be asked, until it answers.
    #[must_use]
    pub fn prober(&self) -> Prober {
        Prober::new(self.inner.clone())
    }
}

impl Drop for Tiers {
    fn drop(&mut self) {
        self.end();
    }
}
