//! Eviction policies: the replaceable part of the order of eviction.
//!
//! ```text
//! rank 10   3 <-> 8        evicted first, 3 before 8
//! rank 50   1 <-> 7 <-> 2
//! rank 90   5              evicted last
//! ```

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, Result};

/// The priority of a block for which none was set.
pub const PRIORITY_DEFAULT: u8 = 50;
/// The highest priority.
pub const PRIORITY_MAX: u8 = 100;
/// The highest rank; a policy's higher answers count as this rank.
pub const RANK_MAX: u8 = 127;

/// A block whose reference count has become zero and whose content is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReleasedBlock {
    /// The priority, 0 to 100; the default one if its limit has passed.
    pub priority: u8,
    /// The block's place in the sequence that released it, 0 for the first block; [`None`] if its priority was changed
    /// while it was cached.
    pub depth: Option<u32>,
}

/// Decides the rank of blocks that are not held. Blocks of lower rank are evicted first, among equal ranks the one
/// released first. [`PagedPlanner::retain`](super::super::PagedPlanner::retain) has the complete rule: independently of
/// the policy, no block is evicted before those that followed it, unless it was given a new priority since, or left a
/// window.
///
/// Bulk reads share the planner with other threads, hence `Sync`; these threads never call the policy.
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
    /// Returns the block's rank, 0 to 127; the block with the lowest rank is evicted first.
    fn rank(&self, released: &ReleasedBlock) -> u8;

    /// Returns true if among equal ranks the least useful block is evicted first, as [`LeastUseful`] describes it,
    /// instead of the one released first. Asked once.
    fn orders_by_usefulness(&self) -> bool {
        false
    }
}

/// Shares one policy between several caches.
impl EvictionPolicy for Arc<dyn EvictionPolicy> {
    fn rank(&self, released: &ReleasedBlock) -> u8 {
        self.as_ref().rank(released)
    }

    fn orders_by_usefulness(&self) -> bool {
        self.as_ref().orders_by_usefulness()
    }
}

/// Evicts the lowest priority first, among equal priorities the least recently used block.
#[derive(Clone, Copy, Debug, Default)]
pub struct LeastRecentlyUsed;

impl EvictionPolicy for LeastRecentlyUsed {
    fn rank(&self, released: &ReleasedBlock) -> u8 {
        released.priority
    }
}

/// Evicts the lowest rank of another policy first, among equal ranks the least useful block: for blocks that prompts
/// find one by one, without the blocks before them, such as checkpoints of a state.
///
/// The usefulness of a block is the tokens that finding it saves × the number of prompts that had its tokens. It counts
/// from the age of the pool at the block's last release, which is the usefulness of the most useful block evicted
/// until then: a block that was requested often and no longer is does not stay forever.
///
/// ```
/// use kvtide_core::paged::{EvictionPolicy, LeastUseful, PagedPlanner};
///
/// assert!(LeastUseful::default().orders_by_usefulness());
/// let states = PagedPlanner::new(64, 16, 1)?.evicting(Box::new(LeastUseful::default()));
/// # Ok::<(), kvtide_core::Error>(())
/// ```
#[derive(Debug)]
pub struct LeastUseful(Box<dyn EvictionPolicy>);

impl LeastUseful {
    /// Ranks blocks as another policy does.
    #[must_use]
    pub fn ranked_by(ranks: Box<dyn EvictionPolicy>) -> Self {
        LeastUseful(ranks)
    }
}

/// Ranks blocks by their priorities.
impl Default for LeastUseful {
    fn default() -> Self {
        LeastUseful(Box::new(LeastRecentlyUsed))
    }
}

impl EvictionPolicy for LeastUseful {
    fn rank(&self, released: &ReleasedBlock) -> u8 {
        self.0.rank(released)
    }

    fn orders_by_usefulness(&self) -> bool {
        true
    }
}

/// Number of depths in a table.
const COLUMNS: usize = RankTable::DEPTH_MAX as usize + 1;

/// A policy as a table of the ranks of all priorities and depths, for policies that are written in another language or
/// that are slow. 26 kB. A block without a depth counts as the first of a sequence.
///
/// ```
/// use kvtide_core::paged::{EvictionPolicy, RankTable, ReleasedBlock};
///
/// let heads_longer = |priority: u8, depth: u32| priority + if depth < 4 { 20 } else { 0 };
/// // Row by row: the priorities from 0 to 100, in each the depths from 0 to 255.
/// let ranks: Vec<u8> = (0..=100).flat_map(|priority| (0..=255).map(move |depth| heads_longer(priority, depth))).collect();
/// let table = RankTable::new(&ranks)?;
/// assert_eq!(table.rank(&ReleasedBlock { priority: 50, depth: Some(3) }), 70);
/// assert_eq!(table.rank(&ReleasedBlock { priority: 50, depth: Some(4_000_000) }), 50);
/// # Ok::<(), kvtide_core::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct RankTable(Box<[u8]>);

impl RankTable {
    /// The greatest depth with its own ranks; deeper blocks have the same ranks.
    pub const DEPTH_MAX: u32 = 255;
    /// Number of ranks in a table.
    pub const RANKS: usize = (PRIORITY_MAX as usize + 1) * COLUMNS;

    /// Returns a table of these ranks: priorities from the lowest on, and for each the depths from 0 on.
    pub fn new(ranks: &[u8]) -> Result<Self> {
        if ranks.len() != RankTable::RANKS {
            let expected = format!("{}, one for each priority and depth", RankTable::RANKS);
            return Err(Error::argument("ranks.length", ranks.len() as u64, expected));
        }
        match ranks.iter().find(|&&rank| rank > RANK_MAX) {
            Some(&rank) => Err(Error::argument("ranks", u32::from(rank), "0 to 127 each")),
            None => Ok(RankTable(ranks.into())),
        }
    }

    /// Returns the table of another policy's answers; ranks above 127 count as 127.
    pub fn of(policy: &impl EvictionPolicy) -> Self {
        let ask = |priority, depth| policy.rank(&ReleasedBlock { priority, depth: Some(depth) }).min(RANK_MAX);
        let row = |priority| (0..=RankTable::DEPTH_MAX).map(move |depth| ask(priority, depth));
        RankTable((0..=PRIORITY_MAX).flat_map(row).collect())
    }
}

/// Shows the size only: a list of 26,000 numbers is not readable.
impl fmt::Debug for RankTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RankTable of {}", self.0.len())
    }
}

impl EvictionPolicy for RankTable {
    fn rank(&self, released: &ReleasedBlock) -> u8 {
        let column = released.depth.unwrap_or(0).min(RankTable::DEPTH_MAX) as usize;
        self.0[usize::from(released.priority.min(PRIORITY_MAX)) * COLUMNS + column]
    }
}
