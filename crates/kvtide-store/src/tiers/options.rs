//! Which tiers there are, how much each keeps, and when blocks go there.

use std::sync::Arc;

use kvtide_tensor::{Budget, Descent};

use super::lower::EntryStore;

/// When blocks go to a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Policy {
    /// When they make room in the tier above.
    Eviction,
    /// When they are full and committed.
    Commit,
    /// When a prompt finds them.
    SecondUse,
}

impl Policy {
    /// Whether a block goes there for a reason; `is_known` says that it went there before.
    pub(super) fn wants(self, why: Descent, is_known: bool) -> bool {
        match (self, why) {
            (Policy::Commit, Descent::Named) => true,
            // One that was evicted before it was handed down goes now.
            (Policy::Commit, Descent::Evicted) | (Policy::SecondUse, Descent::Found) => !is_known,
            (Policy::Eviction, Descent::Evicted) => true,
            _ => false,
        }
    }
}

/// The tier in the host's memory.
#[derive(Clone, Copy, Debug)]
pub struct MemoryOptions {
    /// The most bytes of blocks that it keeps.
    pub limit_bytes: u64,
    /// When blocks go there.
    pub policy: Policy,
}

/// Where a lower tier keeps its entries.
#[derive(Clone, Debug)]
pub enum LowerPlace {
    /// In a store that is called from here.
    Store(Arc<dyn EntryStore>),
    /// Somewhere that only the caller reaches: entries are [taken](super::Tiers::take_pending) by it, and brought by it.
    Caller,
}

/// A tier below the host's memory.
#[derive(Clone, Debug)]
pub struct LowerOptions {
    /// What it is called in statistics: `disk`, `store`.
    pub name: &'static str,
    /// Where it is.
    pub place: LowerPlace,
    /// When blocks go there.
    pub policy: Policy,
}

/// What lies below a cache, from above to below.
#[derive(Clone, Debug)]
pub struct TierOptions {
    /// The host's memory, where it is a tier.
    pub memory: Option<MemoryOptions>,
    /// The tiers below it.
    pub lower: Vec<LowerOptions>,
    /// The most bytes that wait to be written to the lower tiers. What comes then is not kept there.
    pub pending_bytes: u64,
    /// Under which limit the bytes of blocks are counted.
    pub budget: Option<Arc<Budget>>,
}

impl Default for TierOptions {
    fn default() -> Self {
        TierOptions { memory: None, lower: Vec::new(), pending_bytes: 256 << 20, budget: None }
    }
}
