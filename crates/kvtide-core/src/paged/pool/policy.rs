//! Which blocks are evicted first: the part of it that can be replaced.
//!
//! ```text
//! rank 10   3 <-> 8        evicted first, 3 before 8
//! rank 50   1 <-> 7 <-> 2
//! rank 90   5              evicted last
//! ```
//!
//! A policy gives a rank to a block whose last user has let go of it. Blocks of lower rank are evicted first, among equal
//! ones those that were released first. Whatever a policy answers, a block is never ranked below those that were released
//! before it in the same chain, so tails go before heads, unless a new priority says otherwise.

use std::fmt;
use std::sync::Arc;

/// The priority of a block that was given none.
pub const PRIORITY_DEFAULT: u8 = 50;
/// The highest priority.
pub const PRIORITY_MAX: u8 = 100;
/// The highest rank; what a policy answers above it counts as this.
pub const RANK_MAX: u8 = 127;

/// A block that nobody uses any more and whose content is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReleasedBlock {
    /// Its priority, 0 to 100; the default one when a limited one is over.
    pub priority: u8,
    /// Its place in the sequence that let go of it, 0 for the first block; none when its priority was changed while nobody
    /// used it.
    pub depth: Option<u32>,
}

/// Decides which blocks are evicted first: those of the lowest rank, among equal ones the one released first. What it answers is a
/// block's own rank; what else counts says [`PagedPlanner::retain`](super::super::PagedPlanner::retain), whose rule no policy
/// changes: no block goes before those that followed it, unless it was given a new priority since, or left a window.
///
/// Bulk reads share the planner with other threads, hence `Sync`; none of them asks.
///
/// ```
/// use kvtide_core::paged::{EvictionPolicy, ReleasedBlock};
///
/// /// Keeps the first four blocks of a sequence longer: they are shared more often.
/// #[derive(Debug)]
/// struct HeadsLonger;
///
/// impl EvictionPolicy for HeadsLonger {
///     fn rank(&self, released: &ReleasedBlock) -> u8 {
///         let head = released.depth.is_some_and(|depth| depth < 4);
///         released.priority + if head { 20 } else { 0 }
///     }
/// }
/// ```
pub trait EvictionPolicy: fmt::Debug + Send + Sync {
    /// The block's rank, 0 to 127; the lowest is evicted first.
    fn rank(&self, released: &ReleasedBlock) -> u8;
}

/// One policy for several caches.
impl EvictionPolicy for Arc<dyn EvictionPolicy> {
    fn rank(&self, released: &ReleasedBlock) -> u8 {
        self.as_ref().rank(released)
    }
}

/// The lowest priority first, among equal ones the least recently used.
#[derive(Clone, Copy, Debug, Default)]
pub struct LeastRecentlyUsed;

impl EvictionPolicy for LeastRecentlyUsed {
    fn rank(&self, released: &ReleasedBlock) -> u8 {
        released.priority
    }
}
