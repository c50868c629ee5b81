//! KV events as vLLM publishes them, in msgpack.
//!
//! ```text
//! [ts, [ {type: "BlockStored", block_hashes, parent_block_hash, token_ids, block_size, …}, … ], data_parallel_rank]
//! ```
//!
//! event has the types, encode writes that form, decode reads that and the older ones, over reader, which takes no memory that a message
//! only promises.

mod decode;
mod encode;
mod event;
mod reader;

pub use decode::decode;
pub use encode::encode;
pub use event::{Batch, BlockHash, Event, ExtraKeys, RemovedBlocks, StoredBlocks};
