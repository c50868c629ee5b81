//! Offloading: blocks are copied on the cache's thread, and queued for the tiers below memory.
//!
//! ```text
//! newly hashed, found, evicted -> wants -> take: one copy -> memory at once; its evictions, and the other tiers, through the queue
//! ```

use std::sync::Arc;
use std::sync::atomic::Ordering;

use kvtide_core::paged::{BlockKey, BlockName};
use kvtide_tensor::pages::{Below, Descent};

use crate::entry::StoreKey;
use crate::inner::Inner;
use crate::memory::Block;
use crate::options::Policy;
use crate::stats::Counts;
use crate::tier::{Side, Tier};

impl Inner {
    /// True if a tier takes a block that leaves the cache now. Evictions from the tier above are decided elsewhere.
    fn wants_lower(&self, tier: &Tier, key: &StoreKey, why: Descent) -> bool {
        let is_asked = self.top.is_none() || tier.policy != Policy::Eviction;
        !self.is_forgotten() && is_asked && tier.wants(key, why) && self.reaches(tier)
    }

    /// True if a tier is reachable as far as is known. If it is not, the writer thread probes it.
    fn reaches(&self, tier: &Tier) -> bool {
        let is_worth = tier.is_worth();
        if !is_worth && tier.is_of(Side::Direct) {
            self.queue.probe();
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

    /// Queues a block for a tier, if there is room.
    fn send(&self, at: usize, key: StoreKey, block: Arc<Block>) {
        let tier = &self.lower[at];
        // Noted before the push, because the writer may note soon after it that the block does not exist.
        tier.note(key);
        if !self.queue.push(at, key, block) {
            tier.lose(&[key]);
        }
    }
}

impl Below for Inner {
    fn wants(&self, group: usize, key: &BlockKey, why: Descent) -> bool {
        if self.has_ended.load(Ordering::Acquire) {
            return false;
        }
        let key = self.key(group, key);
        // Memory is asked first. If it has the block already, this use counts there.
        let wants_top = self.top.as_ref().is_some_and(|top| top.policy.wants(why, false) && !top.memory.contains(&key));
        wants_top || self.lower.iter().any(|tier| self.wants_lower(tier, &key, why))
    }

    fn take(
        &self,
        group: usize,
        name: &BlockName<'_>,
        why: Descent,
        copy: &mut dyn FnMut(&mut Vec<u8>) -> kvtide_tensor::Result<()>,
    ) {
        let key = self.key(group, &name.key);
        let Some(block) = self.block(group, name, copy).map(Arc::new) else {
            if let Some(top) = &self.top {
                Counts::add(&top.counts.dropped, 1);
            }
            return;
        };
        for (at, tier) in self.lower.iter().enumerate() {
            if self.wants_lower(tier, &key, why) {
                self.send(at, key, block.clone());
            }
        }
        let Some(top) = self.top.as_ref().filter(|top| top.policy.wants(why, false)) else { return };
        Counts::add(&top.counts.stored, 1);
        self.log.stored(0, &key, &block.tokens);
        let is_forgotten = self.is_forgotten();
        let next = self.lower.iter().position(|tier| tier.policy == Policy::Eviction && !is_forgotten);
        for (key, evicted) in top.memory.put(key, block) {
            self.log.removed(0, &key);
            match next {
                Some(next) if self.reaches(&self.lower[next]) => self.send(next, key, evicted),
                Some(next) => Counts::add(&self.lower[next].counts.dropped, 1),
                None => {}
            }
        }
    }

    fn forget(&self) {
        self.is_forgotten.store(true, Ordering::Release);
        self.queue.clear();
        if let Some(top) = &self.top {
            top.memory.clear();
        }
        self.waiters.wake();
    }
}
