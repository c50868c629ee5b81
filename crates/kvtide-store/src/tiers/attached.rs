//! The tiers of one cache: what it hands down is put in order here.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use kvtide_core::paged::{BlockKey, BlockName};
use kvtide_tensor::{Below, Budget, Descent, PagedKvCache};

use super::counts::{Counts, TierStats};
use super::lower::Lower;
use super::memory::{Block, Memory};
use super::mover::Mover;
use super::options::{LowerPlace, Policy, TierOptions};
use super::told::{TierEvent, Told};
use crate::entry::StoreKey;
use crate::error::{Error, Result};
use crate::identity::Identity;

/// The tiers below a cache. While the cache lives, its blocks go down; once this is dropped they stay where they are.
#[derive(Debug)]
pub struct Tiers {
    pub(super) inner: Arc<Inner>,
}

/// The tier in memory, and when blocks go there.
#[derive(Debug)]
pub(super) struct Top {
    pub memory: Memory,
    pub policy: Policy,
    pub counts: Counts,
}

#[derive(Debug)]
pub(super) struct Inner {
    pub form: [u8; 32],
    pub block_size: usize,
    /// Of each group.
    pub page_bytes: Vec<usize>,
    pub top: Option<Top>,
    pub lower: Vec<Lower>,
    mover: Mover,
    budget: Arc<Budget>,
    /// Whether nothing of what lies in the lower tiers counts any more.
    pub is_forgotten: AtomicBool,
    /// Threads that bring blocks.
    pub fetchers: AtomicUsize,
    told: Told,
}

impl Tiers {
    /// Puts tiers below a cache. Refused where it has some, and, with lower tiers, where its prefix key was not chosen: other processes
    /// would never find what it names.
    pub fn attach(cache: &mut PagedKvCache, options: TierOptions) -> Result<Self> {
        if !options.lower.is_empty() && cache.namer().own_key().is_some() {
            let expected = "32 bytes, the same for all who share blocks: names are made under it";
            return Err(kvtide_tensor::Error::argument("prefixKey", "none", expected).into());
        }
        let budget = options.budget.unwrap_or_else(Budget::process);
        let inner = Arc::new(Inner {
            form: Identity::of(cache).digest(),
            block_size: cache.block_size() as usize,
            page_bytes: cache.block_bytes(),
            top: options.memory.map(|of| Top {
                memory: Memory::new(of.limit_bytes),
                policy: of.policy,
                counts: Counts::default(),
            }),
            lower: options.lower.into_iter().map(Lower::new).collect(),
            mover: Mover::new(options.pending_bytes),
            budget,
            is_forgotten: AtomicBool::new(false),
            fetchers: AtomicUsize::new(0),
            told: Told::default(),
        });
        cache.set_below(inner.clone())?;
        if inner.lower.iter().any(|lower| lower.store().is_some()) {
            let moved = inner.clone();
            let work = move || moved.mover.run(&moved.lower, &moved.form, &moved.told);
            let started = std::thread::Builder::new().name("kvtide-tiers".to_owned()).spawn(work);
            started.map_err(|reason| Error::io("start", "a thread".as_ref(), reason))?;
        }
        Ok(Tiers { inner })
    }

    /// Waits until all that went down so far is where it belongs, or the deadline is there. Answers whether it is.
    #[must_use]
    pub fn flush(&self, deadline: Instant) -> bool {
        self.inner.mover.drained(deadline)
    }

    /// How this can be waited for from another thread.
    pub fn flusher(&self) -> impl FnOnce(Instant) -> bool + Send + 'static + use<> {
        let inner = self.inner.clone();
        move |deadline| inner.mover.drained(deadline)
    }

    /// Nothing goes down any more, and what waits is lost.
    pub fn end(&self) {
        self.inner.mover.end();
        self.inner.is_forgotten.store(true, Ordering::Release);
    }

    /// What there is in each tier, by its name.
    #[must_use]
    pub fn stats(&self) -> Vec<(&'static str, TierStats)> {
        let top = self.inner.top.iter().map(|top| {
            let (blocks, bytes) = top.memory.usage();
            ("memory", top.counts.stats(blocks, bytes))
        });
        let bytes = |lower: &Lower| lower.store().and_then(|store| store.bytes()).unwrap_or(0);
        top.chain(self.inner.lower.iter().map(|lower| (lower.name, lower.counts.stats(0, bytes(lower))))).collect()
    }

    /// Notes from now on what happens in the tiers to blocks of a group of layers.
    pub fn follow(&self, group: usize) {
        self.inner.told.follow(group as u16);
    }

    /// What happened since the last call, in order, and whether more did that is not told. What other processes remove from a folder is not.
    #[must_use]
    pub fn take_events(&self) -> (Vec<TierEvent>, bool) {
        self.inner.told.take()
    }

    /// Says whether the tier that only the caller reaches can be reached. While it cannot, nothing is copied for it.
    pub fn set_reachable(&self, is_reachable: bool) {
        self.inner.lower.iter().for_each(|lower| lower.is_reachable.store(is_reachable, Ordering::Relaxed));
    }

    /// The entries that wait for the tier that only the caller reaches, some at a time: to be encoded on another thread.
    #[must_use]
    pub fn take_pending(&self) -> Option<Pending> {
        let tier = self.inner.lower.iter().position(|lower| matches!(lower.place, LowerPlace::Caller))?;
        let blocks = self.inner.mover.take_of(tier);
        (!blocks.is_empty()).then(|| Pending { inner: self.inner.clone(), tier, blocks })
    }
}

impl Drop for Tiers {
    fn drop(&mut self) {
        self.end();
    }
}

/// Blocks for a tier that only the caller reaches.
#[derive(Debug)]
pub struct Pending {
    inner: Arc<Inner>,
    tier: usize,
    blocks: Vec<(StoreKey, Arc<Block>)>,
}

impl Pending {
    /// As a store has them. O(bytes).
    #[must_use]
    pub fn encode(&self) -> Vec<(StoreKey, Vec<u8>)> {
        let form = &self.inner.form;
        self.blocks.iter().filter_map(|(key, block)| Some((*key, block.encode(key, form)?))).collect()
    }

    /// Says whether they are there now.
    pub fn settle(self, is_there: bool) {
        let lower = &self.inner.lower[self.tier];
        let keys: Vec<StoreKey> = self.blocks.iter().map(|(key, _)| *key).collect();
        let count = if is_there { &lower.counts.stored } else { &lower.counts.dropped };
        Counts::add(count, keys.len());
        if !is_there {
            lower.unnote(&keys);
        }
    }
}

impl Inner {
    fn key(group: usize, key: &BlockKey) -> StoreKey {
        StoreKey { block: *key, group: group as u16 }
    }

    /// Whether a tier takes a block that leaves the cache now. What the tier above it lets go of is another matter.
    fn wants_lower(&self, lower: &Lower, key: &StoreKey, why: Descent) -> bool {
        let has_forgotten = self.is_forgotten.load(Ordering::Acquire);
        let is_asked = self.top.is_none() || lower.policy != Policy::Eviction;
        !has_forgotten && is_asked && lower.wants(key, why) && self.reaches(lower)
    }

    /// Whether a tier can be reached, as far as is known. Where not, it is found out when it is there again.
    fn reaches(&self, lower: &Lower) -> bool {
        let is_worth = lower.is_worth();
        if !is_worth {
            self.mover.ask();
        }
        is_worth
    }

    fn block(
        &self,
        group: usize,
        name: &BlockName<'_>,
        copy: &mut dyn FnMut(&mut Vec<u8>) -> kvtide_tensor::Result<()>,
    ) -> Option<Block> {
        let bytes = self.page_bytes[group];
        let (mut page, mut tokens, mut extras) = (Vec::new(), Vec::new(), Vec::new());
        let lease = self.budget.take((bytes + name.tokens.len() * 4 + name.extras.len()) as u64).ok()?;
        page.try_reserve_exact(bytes).ok()?;
        tokens.try_reserve_exact(name.tokens.len()).ok()?;
        extras.try_reserve_exact(name.extras.len()).ok()?;
        copy(&mut page).ok()?;
        tokens.extend_from_slice(name.tokens);
        extras.extend_from_slice(name.extras);
        Some(Block { parent: name.parent, tokens, extras, page, lease })
    }

    /// Lets a block wait for a tier, if there is room.
    fn send(&self, tier: usize, key: StoreKey, block: Arc<Block>) {
        let lower = &self.lower[tier];
        if self.mover.has_room(block.bytes()) {
            lower.note(key);
            self.mover.push(tier, key, block);
        } else {
            Counts::add(&lower.counts.dropped, 1);
        }
    }
}

impl Below for Inner {
    fn wants(&self, group: usize, key: &BlockKey, why: Descent) -> bool {
        let key = Inner::key(group, key);
        // Asked first: a block that is there is used by this.
        let wants_top = self.top.as_ref().is_some_and(|top| top.policy.wants(why, false) && !top.memory.contains(&key));
        wants_top || self.lower.iter().any(|lower| self.wants_lower(lower, &key, why))
    }

    fn take(
        &self,
        group: usize,
        name: &BlockName<'_>,
        why: Descent,
        copy: &mut dyn FnMut(&mut Vec<u8>) -> kvtide_tensor::Result<()>,
    ) {
        let key = Inner::key(group, &name.key);
        let Some(block) = self.block(group, name, copy).map(Arc::new) else {
            if let Some(top) = &self.top {
                Counts::add(&top.counts.dropped, 1);
            }
            return;
        };
        for (tier, lower) in self.lower.iter().enumerate() {
            if self.wants_lower(lower, &key, why) {
                self.send(tier, key, block.clone());
            }
        }
        let Some(top) = self.top.as_ref().filter(|top| top.policy.wants(why, false)) else { return };
        Counts::add(&top.counts.stored, 1);
        self.told.stored(0, &key, &block.tokens);
        let has_forgotten = self.is_forgotten.load(Ordering::Acquire);
        let next = self.lower.iter().position(|lower| lower.policy == Policy::Eviction && !has_forgotten);
        for (key, gone) in top.memory.put(key, block) {
            self.told.removed(0, &key);
            match next {
                Some(next) if self.reaches(&self.lower[next]) => self.send(next, key, gone),
                Some(next) => Counts::add(&self.lower[next].counts.dropped, 1),
                None => {}
            }
        }
    }

    fn forget(&self) {
        self.is_forgotten.store(true, Ordering::Release);
        self.mover.clear();
        if let Some(top) = &self.top {
            top.memory.clear();
        }
    }
}
