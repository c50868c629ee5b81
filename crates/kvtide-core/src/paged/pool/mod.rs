//! Blocks: who holds them, which is taken next, and what becomes of one from when it is handed out until it is taken again.
//!
//! ```text
//! policy -> rank, queue, limits, lists -> order -> blocks -> block_pool, page_pool
//! ```

mod block_pool;
mod blocks;
mod limits;
mod lists;
mod order;
mod page_pool;
mod policy;
mod queue;
mod rank;

pub use block_pool::{BlockHandle, BlockPool, BlockTable};
pub use blocks::{Blocks, Release, TakenBlock};
pub use order::BlockState;
pub use page_pool::{HoldCounter, PagePool};
pub use policy::{
    EvictionPolicy, LeastRecentlyUsed, PRIORITY_DEFAULT, PRIORITY_MAX, RANK_MAX, RankTable, ReleasedBlock,
};
pub use rank::RankChain;
