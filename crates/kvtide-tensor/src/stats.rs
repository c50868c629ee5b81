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
