//! What happened in a tier.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts of one tier, in blocks.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub stored: AtomicU64,
    pub dropped: AtomicU64,
    pub found: AtomicU64,
    pub damaged: AtomicU64,
}

/// What a tier holds, and what happened there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierStats {
    /// Blocks that it holds, where it counts them itself.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Blocks that were put there.
    pub stored: u64,
    /// Blocks that were to go there and did not: there was no room for them to wait, or they could not be written.
    pub dropped: u64,
    /// Blocks that came back.
    pub found: u64,
    /// Entries that were not what was asked for.
    pub damaged: u64,
}

impl Counts {
    pub fn add(count: &AtomicU64, more: usize) {
        count.fetch_add(more as u64, Ordering::Relaxed);
    }

    /// With what it holds now.
    pub fn stats(&self, blocks: u64, bytes: u64) -> TierStats {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        TierStats {
            blocks,
            bytes,
            stored: read(&self.stored),
            dropped: read(&self.dropped),
            found: read(&self.found),
            damaged: read(&self.damaged),
        }
    }
}
