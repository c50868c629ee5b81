//! The tiers of one cache.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use kvtide_core::paged::BlockKey;
use kvtide_files::{Error, Identity, Result};
use kvtide_tensor::{Budget, PagedKvCache};

use crate::caller::CallerGate;
use crate::entry::{FormTag, StoreKey};
use crate::events::{TierEvent, TierLog};
use crate::fetch::Waiters;
use crate::health::{Event, Health};
use crate::memory::Memory;
use crate::offload::Queue;
use crate::options::{Access, Policy, TiersOptions};
use crate::stats::{Counts, TierStats};
use crate::tier::Tier;
use crate::writer::{Prober, Side, Writer};

/// The tiers of a cache. Blocks are offloaded until this is dropped or the cache ends; entries in a folder or a store
/// remain.
#[derive(Debug)]
pub struct Tiers {
    pub(crate) inner: Arc<Inner>,
}

/// The memory tier and its policy.
#[derive(Debug)]
pub(crate) struct Top {
    pub memory: Memory,
    pub policy: Policy,
    pub counts: Counts,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub form: [u8; 32],
    tag: FormTag,
    pub block_size: usize,
    /// The bytes of a block in each group.
    pub page_bytes: Vec<usize>,
    pub top: Option<Top>,
    pub lower: Vec<Tier>,
    pub queue: Queue,
    pub budget: Arc<Budget>,
    /// True once prefixes were forgotten: the lower tiers are no longer used.
    pub is_forgotten: AtomicBool,
    /// True once the cache or its tiers have ended.
    pub has_ended: AtomicBool,
    /// The threads that wait for restored blocks.
    pub waiters: Waiters,
    /// The number of threads that restore blocks.
    pub fetchers: AtomicUsize,
    pub log: TierLog,
}

impl Tiers {
    /// Attaches tiers to a cache. Refused if the cache has tiers already, or if there are lower tiers and its prefix
    /// key was made at random: no other process could find its blocks.
    pub fn attach(cache: &mut PagedKvCache, options: TiersOptions) -> Result<Self> {
        if !options.lower.is_empty() && cache.namer().own_key().is_some() {
            let expected = "32 bytes, the same for all who share blocks: names are made under it";
            return Err(Error::argument("prefixKey", "none", expected));
        }
        let budget = options.budget.unwrap_or_else(Budget::process);
        let form = Identity::of(cache).digest();
        let inner = Arc::new(Inner {
            form,
            tag: FormTag::of(&form),
            block_size: cache.block_size() as usize,
            page_bytes: cache.block_bytes(),
            top: options.memory.map(|of| Top {
                memory: Memory::new(of.limit_bytes),
                policy: of.policy,
                counts: Counts::default(),
            }),
            lower: options.lower.into_iter().map(Tier::new).collect(),
            queue: Queue::new(options.pending_bytes),
            budget,
            is_forgotten: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
            waiters: Waiters::default(),
            fetchers: AtomicUsize::new(0),
            log: TierLog::default(),
        });
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

    /// Logs, from now on, what happens in the tiers to blocks of a group of layers.
    pub fn follow(&self, group: usize) {
        self.inner.log.follow(group as u16);
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

impl Inner {
    /// Returns the key of a block of a group.
    pub fn key(&self, group: usize, key: &BlockKey) -> StoreKey {
        StoreKey { block: *key, group: group as u16, form: self.tag }
    }

    pub fn is_forgotten(&self) -> bool {
        self.is_forgotten.load(Ordering::Acquire)
    }

    /// Returns the place of the tier whose store the caller calls; memory has place 0.
    pub fn caller(&self) -> Option<usize> {
        self.lower.iter().position(|tier| tier.is_of(Side::Caller)).map(|at| at + 1)
    }

    /// Returns the counts of the tier at a place.
    pub fn counts(&self, place: usize) -> Option<&Counts> {
        match place {
            0 => self.top.as_ref().map(|top| &top.counts),
            lower => self.lower.get(lower - 1).map(|tier| &tier.counts),
        }
    }
}
