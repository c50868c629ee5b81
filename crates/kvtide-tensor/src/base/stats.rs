//! What a cache costs, as plain numbers.

/// Copies of rows that were there already, each kind counted apart, and the memory in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Bytes of the cache's own buffer, slack included.
    pub buffer_bytes: u64,
    /// Bytes that views and snapshots keep besides.
    pub held_bytes: u64,
    /// Bytes in use in all.
    pub used_bytes: u64,
    /// The limit of this cache; `u64::MAX` when it has none of its own.
    pub limit_bytes: u64,
    /// Times the buffer was replaced by a larger one.
    pub growths: u64,
    /// Times the window moved to the front.
    pub compactions: u64,
    /// Times rows were copied to keep a snapshot whole.
    pub copies_on_write: u64,
    /// Bytes that these three copied.
    pub copied_bytes: u64,
}

impl Stats {
    /// What two caches cost together.
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
