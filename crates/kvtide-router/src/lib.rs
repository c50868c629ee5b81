//! Which worker has the longest prefix of a prompt.
//!
//! ```text
//! wire        events as vLLM publishes them: bytes and back
//! zmq         a publisher and a follower over ZeroMQ (the feature `zeromq`)
//! index       which worker has which blocks; who has how much of a prompt, and who takes it
//! simulator   what that is worth for a kind of traffic
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
mod simulator;
mod wire;
#[cfg(feature = "zeromq")]
mod zmq;

pub use error::{Error, Result};
pub use index::{
    Choice, HeldPrefix, IndexUsage, Policy, Tier, TierCounts, WORKERS_MAX, WorkerFeed, WorkerId, WorkerIndex,
    WorkerPrefix, Workers,
};
pub use simulator::{Report, Routing, SimulatorOptions, TraceOptions, simulate};
pub use wire::{Batch, BlockHash, Event, ExtraKeys, RemovedBlocks, StoredBlocks, decode, encode};
#[cfg(feature = "zeromq")]
pub use zmq::{Followed, Follower, FollowerOptions, Publisher, PublisherOptions};

/// The example of the page that registries show.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
