//! Finds the worker with the longest cached prefix of a prompt.
//!
//! ```text
//! wire        KV events in vLLM's format: encoding and decoding
//! zmq         a publisher and a follower over ZeroMQ (the feature `zeromq`)
//! zmtp        the part of ZeroMQ's wire protocol that these two need
//! index       the blocks of each worker; finds each worker's prefix of a prompt, and picks a worker
//! ```
//!
//! ```
//! use kvtide_router::{Batch, BlockHash, Event, StoredBlocks, WorkerFeed, WorkerIndex, decode, encode};
//!
//! let hashes = vec![BlockHash::Number(1), BlockHash::Number(2)];
//! let stored = StoredBlocks { hashes, tokens: vec![5, 6, 7, 8], block_size: 2, ..StoredBlocks::default() };
//! let bytes = encode(&Batch { time: 0.0, events: vec![Event::Stored(stored)], rank: None });
//!
//! let mut index = WorkerIndex::new();
//! let mut feed = WorkerFeed::new(index.add_worker()?);
//! feed.apply(&mut index, &decode(&bytes)?)?;
//! assert_eq!(index.find(&[1, 2, 3]).blocks, 2);
//! # Ok::<(), kvtide_router::Error>(())
//! ```
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod error;
mod index;
mod wire;
#[cfg(feature = "zeromq")]
mod zmq;
#[cfg(feature = "zeromq")]
mod zmtp;

pub use error::{Error, Result};
pub use index::{
    Choice, HeldPrefix, IndexUsage, NameCheck, Policy, Tier, TierCounts, WORKERS_MAX, WorkerFeed, WorkerId,
    WorkerIndex, WorkerPrefix, Workers,
};
pub use wire::{Batch, BlockHash, Event, ExtraKeys, RemovedBlocks, StoredBlocks, decode, encode};
#[cfg(feature = "zeromq")]
pub use zmq::{Followed, Follower, FollowerOptions, Publisher, PublisherOptions};

/// Runs the example of the README as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
