//! The pool and the table of blocks, for callers who keep their own sequences.

pub(crate) mod block_pool;
pub(crate) mod block_table;
