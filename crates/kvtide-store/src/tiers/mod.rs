//! Tiers below a cache: the host's memory, a folder, a store that others share. Blocks go down, and come back for a prompt.
//!
//! ```text
//!            cache ---- evicted, named, found ----> take: one copy, on the cache's thread
//!                                                     |
//!   memory (memory.rs)  <--------------------------- put at once; what makes room there goes on to those below
//!   lower (lower.rs)    <--- mover (mover.rs) ------ encoded, and written on a thread of its own
//!
//!   bring (bring.rs)    look_up -> ask -> begin -> fetch -> end     names on the cache's thread, bytes on others
//! ```
//!
//! Nothing here is waited for by the cache. What is late, lost, damaged or in the way is a miss: every entry that comes back was
//! compared with what was asked for before a prompt finds it.

mod attached;
mod bring;
mod counts;
mod lower;
mod memory;
mod mover;
mod options;
mod told;

pub use attached::{Pending, Tiers};
pub use bring::{Bring, Lookup, TierSet};
pub use counts::TierStats;
pub use lower::{EntryStore, SharedStore};
pub use options::{LowerOptions, LowerPlace, MemoryOptions, Policy, TierOptions};
pub use told::TierEvent;
