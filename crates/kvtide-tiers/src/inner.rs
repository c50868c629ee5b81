//! The state of a cache's tiers: the cache, the writers and the restores share it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use kvtide_core::paged::BlockKey;
use kvtide_files::Identity;
use kvtide_tensor::PagedKvCache;
use kvtide_tensor::runtime::Budget;

use crate::entry::{FormTag, StoreKey};
use crate::events::TierLog;
use crate::memory::Memory;
use crate::options::{Policy, TiersOptions};
use crate::queue::Queue;
use crate::stats::Counts;
use crate::tier::{Side, Tier};
use crate::waiters::Waiters;

/// The memory tier and its policy.
#[derive(Debug)]
pub(crate) struct Top {
    pub memory: Memory,
    pub policy: Policy,
    pub counts: Counts,
}

/// The state of a cache's tiers.
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

impl Inner {
    /// Returns the state of a cache's new tiers.
    pub fn new(cache: &PagedKvCache, options: TiersOptions) -> Self {
        let form = Identity::of(cache).digest();
        Inner {
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
            budget: options.budget.unwrap_or_else(Budget::process),
            is_forgotten: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
            waiters: Waiters::default(),
            fetchers: AtomicUsize::new(0),
            log: TierLog::default(),
        }
    }

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
