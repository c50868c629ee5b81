//! The counts of one tier.

use std::sync::atomic::{AtomicU64, Ordering};

/// The counts of one tier, in blocks.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub stored: AtomicU64,
    pub dropped: AtomicU64,
    pub found: AtomicU64,
    pub damaged: AtomicU64,
}

/// The content of a tier, and the counts of what happened to its blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierStats {
    /// The number of blocks in it, if the tier counts them itself.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Blocks that were written to it.
    pub stored: u64,
    /// Blocks that were not written: the offload queue was full, or the write failed.
    pub dropped: u64,
    /// Blocks that were restored from it.
    pub found: u64,
    /// Entries that were damaged.
    pub damaged: u64,
}

impl Counts {
    pub fn add(count: &AtomicU64, more: usize) {
        count.fetch_add(more as u64, Ordering::Relaxed);
    }

    /// Returns the statistics, given the current content.
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
