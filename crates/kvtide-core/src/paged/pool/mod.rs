//! The pool: reference counts of blocks, the order in which they are taken, and their states from hand-out to eviction.
//!
//! ```text
//! policy -> rank, queue, limits, lists -> order, usefulness -> blocks -> block_pool, page_pool
//! ```
//!
//! A held block is never evicted, and every block is in exactly one state. Calls are O(1), or O(log limits) for blocks with time limits, and
//! O(log cached) if the least useful block is evicted first.

mod block_pool;
mod blocks;
mod limits;
mod lists;
mod order;
mod page_pool;
mod policy;
mod queue;
mod rank;
mod usefulness;

pub use block_pool::{BlockHandle, BlockPool, BlockTable};
pub use blocks::{Blocks, Release};
pub use order::BlockState;
pub use page_pool::{HoldCounter, PagePool};
pub use policy::{EvictionPolicy, LeastUseful, PRIORITY_DEFAULT, PRIORITY_MAX, RANK_MAX, RankTable, ReleasedBlock};
pub use rank::RankChain;
