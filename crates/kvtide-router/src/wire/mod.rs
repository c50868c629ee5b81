//! KV events in vLLM's msgpack format.
//!
//! ```text
//! [ts, [ {type: "BlockStored", block_hashes, parent_block_hash, token_ids, block_size, …}, … ], data_parallel_rank]
//! ```
//!
//! event has the types, encode writes this form, decode reads it and older forms. writer writes msgpack; reader parses it
//! and never allocates memory based on a length that a message merely claims.

mod decode;
mod encode;
mod event;
mod reader;
mod writer;

pub use decode::decode;
pub use encode::encode;
pub use event::{Batch, BlockHash, Event, ExtraKeys, RemovedBlocks, StoredBlocks};
