//! The tiers of a cache, their sizes and their offload policies.

use std::sync::Arc;

use kvtide_tensor::pages::Descent;
use kvtide_tensor::runtime::Budget;

use crate::caller::CallerGate;
use crate::envelope::Envelope;
use crate::store::Store;

/// The offload policy of a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Policy {
    /// A block is offloaded when the tier above evicts it.
    Eviction,
    /// A block is offloaded when it is full and committed.
    Commit,
    /// A block is offloaded when a prompt finds it.
    SecondUse,
}

impl Policy {
    /// True if a block is offloaded for this reason; `is_known` is true if it was offloaded before.
    pub(crate) fn wants(self, why: Descent, is_known: bool) -> bool {
        match (self, why) {
            (Policy::Commit, Descent::Named) => true,
            // A block that is evicted before it was offloaded is offloaded now.
            (Policy::Commit, Descent::Evicted) | (Policy::SecondUse, Descent::Found) => !is_known,
            (Policy::Eviction, Descent::Evicted) => true,
            _ => false,
        }
    }
}

/// The memory tier.
#[derive(Clone, Copy, Debug)]
pub struct MemoryOptions {
    /// The most bytes of blocks to keep.
    pub limit_bytes: u64,
    /// Its offload policy.
    pub policy: Policy,
}

/// The side that calls the store of a tier.
#[derive(Clone, Debug)]
pub enum Access {
    /// Threads of this crate call it.
    Direct(Arc<dyn Store>),
    /// The caller calls it: it drives a [`Writer`](crate::Writer) and each [`Restore`](crate::Restore).
    Caller(Arc<CallerGate>),
}

/// A tier below memory.
#[derive(Clone, Debug)]
pub struct TierOptions {
    /// Its name in statistics: `disk`, `store`.
    pub name: &'static str,
    /// Its store.
    pub access: Access,
    /// The envelope of its entries.
    pub envelope: Envelope,
    /// Its offload policy.
    pub policy: Policy,
}

/// The tiers of a cache, from the highest to the lowest.
#[derive(Clone, Debug)]
pub struct TiersOptions {
    /// The memory tier, if there is one.
    pub memory: Option<MemoryOptions>,
    /// The tiers below memory. The one whose store the caller calls is the last.
    pub lower: Vec<TierOptions>,
    /// The limit of the offload queue, in bytes. A block that would exceed it is not offloaded.
    pub pending_bytes: u64,
    /// The budget that counts the bytes of blocks.
    pub budget: Option<Arc<Budget>>,
}

impl Default for TiersOptions {
    fn default() -> Self {
        TiersOptions { memory: None, lower: Vec::new(), pending_bytes: 256 << 20, budget: None }
    }
}
