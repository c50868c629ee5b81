//! Which worker has the longest prefix of a prompt.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod error;
mod index;
mod wire;

pub use error::{Error, Result};
pub use index::{
    Choice, HeldPrefix, IndexUsage, Policy, Tier, TierCounts, WORKERS_MAX, WorkerFeed, WorkerId, WorkerIndex, WorkerPrefix,
    Workers,
};
pub use wire::{Batch, BlockHash, Event, ExtraKeys, RemovedBlocks, StoredBlocks, decode, encode};
