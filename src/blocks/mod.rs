//! The block pool and the block table, for callers that manage their own sequences. Both hold numbers only, no keys or
//! values.

pub(crate) mod block_pool;
pub(crate) mod block_table;
