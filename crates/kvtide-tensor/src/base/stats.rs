//! Costs of a cache, as plain numbers.

/// Counts of the copies of existing rows, by kind, and the memory in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Bytes of the cache's own buffer, slack included.
    pub buffer_bytes: u64,
    /// Further bytes that views and snapshots keep.
    pub held_bytes: u64,
    /// All bytes in use.
    pub used_bytes: u64,
    /// The limit of this cache; `u64::MAX` if it has none of its own.
    pub limit_bytes: u64,
    /// The number of times the buffer was replaced by a larger one.
    pub growths: u64,
    /// The number of times the window was moved to the front of the buffer.
    pub compactions: u64,
    /// The number of times rows were copied to preserve a snapshot.
    pub copies_on_write: u64,
    /// Bytes copied by growths, compactions and copies on write.
    pub copied_bytes: u64,
}

impl Stats {
    /// The sum of two caches' costs.
    #[must_use]
    pub(crate) fn plus(self, other: Stats) -> Stats {
        Stats {
            buffer_bytes: self.buffer_bytes + other.buffer_bytes,
            held_bytes: self.held_bytes + other.held_bytes,
            used_bytes: self.used_bytes + other.used_bytes,
            limit_bytes: self.limit_bytes.max(other.limit_bytes),
            growths: self.growths + other.growths,
            compactions: self.compactions + other.compactions,
            copies_on_write: self.copies_on_write + other.copies_on_write,
            copied_bytes: self.copied_bytes + other.copied_bytes,
        }
    }
}
