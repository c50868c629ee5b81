//! A policy as a table: what it answers for every priority and depth, asked once.
//!
//! ```text
//! depth            0    1   ...   254   255 and deeper
//! priority 0      20   20   ...     0     0
//! ...
//! priority 100   120  120   ...   100   100
//! ```
//!
//! For policies that cannot be asked later: because they live in another language, or because asking takes long. A table is
//! 26 kB and never changes. Every rank in it is at most 127. `rank` is O(1), the rest O(ranks).

use super::policy::{EvictionPolicy, PRIORITY_MAX, RANK_MAX, ReleasedBlock};
use crate::error::{Error, Result};

/// Depths that are told apart.
const COLUMNS: usize = RankTable::DEPTH_MAX as usize + 1;

/// The ranks of all priorities and depths. A block without a depth counts as a head.
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
    /// The greatest depth that has ranks of its own; deeper blocks count as if they lay there.
    pub const DEPTH_MAX: u32 = 255;
    /// Ranks in a table.
    pub const RANKS: usize = (PRIORITY_MAX as usize + 1) * COLUMNS;

    /// A table of these ranks: priorities from the lowest on, in each the depths from 0 on.
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

    /// What another policy answers; more than 127 counts as that.
    pub fn of(policy: &impl EvictionPolicy) -> Self {
        let ask = |priority, depth| policy.rank(&ReleasedBlock { priority, depth: Some(depth) }).min(RANK_MAX);
        let row = |priority| (0..=RankTable::DEPTH_MAX).map(move |depth| ask(priority, depth));
        RankTable((0..=PRIORITY_MAX).flat_map(row).collect())
    }
}

/// By its size alone: nobody reads 26,000 numbers.
impl std::fmt::Debug for RankTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RankTable of {}", self.0.len())
    }
}

impl EvictionPolicy for RankTable {
    fn rank(&self, released: &ReleasedBlock) -> u8 {
        let column = released.depth.unwrap_or(0).min(RankTable::DEPTH_MAX) as usize;
        self.0[usize::from(released.priority.min(PRIORITY_MAX)) * COLUMNS + column]
    }
}
