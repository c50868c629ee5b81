//! Tiers below a KV cache: blocks are offloaded to memory, a folder or a store that machines share, and restored for
//! later prompts.
//!
//! ```text
//! offload    evicted, newly hashed, found -> copied, queued          on the cache's thread
//! writer     queue -> has -> encode -> put                           a state machine without I/O and without a clock
//! restore    look up -> has -> begin -> get, verify -> end           the same; keys are computed once for each prompt
//! caller     drives such a machine if the caller makes the calls
//!
//! store      the one trait: get, has, put, remove, unavailable_for
//! folder     entries in files      redis, objects   over the network, each behind guard (features)      memory   unencoded blocks
//! guard      deadlines, batches, attempts      gate   the breaker, without a clock      policy   timeouts and retries for all stores
//! entry      a block as bytes, verified        envelope   compresses and seals bytes
//! ```
//!
//! A cache never waits for a tier, and never believes one: an entry is compared with the request before a prompt finds
//! it. Late, lost, damaged and unreachable entries are misses.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod caller;
mod entry;
mod envelope;
mod events;
mod fault;
mod fetch;
mod folder;
mod gate;
#[cfg(feature = "client")]
mod guard;
mod health;
mod inner;
mod memory;
#[cfg(feature = "objects")]
mod objects;
mod offload;
mod options;
mod planes;
mod policy;
mod queue;
#[cfg(feature = "redis")]
mod redis;
mod restore;
mod stats;
mod store;
mod sync;
mod tier;
mod tiers;
#[cfg(feature = "redis")]
mod tls;
mod waiters;
mod writer;

pub use caller::{Answer, Call, CallerGate, Driver, Machine, Need, Step};
pub use entry::{Decoded, Entry, Expected, FormTag, StoreKey, Unfit, decode, encode};
pub use envelope::{Envelope, compress, decompress};
pub use events::TierEvent;
pub use fault::{Fault, FaultKind};
pub use folder::{Folder, FolderUsage};
pub use gate::{Answered, Gate, GateOptions, Outcome, Permit, Refusal};
#[cfg(feature = "client")]
pub use guard::{Backend, Guarded, Replies, Watcher};
pub use health::{Event, Health, State};
pub use kvtide_files::{Error, Result};
#[cfg(feature = "objects")]
pub use objects::{ObjectStorage, ObjectStorageOptions};
pub use options::{Access, MemoryOptions, Policy, TierOptions, TiersOptions};
pub use policy::{Clock, GuardOptions};
#[cfg(feature = "redis")]
pub use redis::{Redis, RedisOptions};
pub use restore::{Restore, TierSet};
pub use stats::TierStats;
pub use store::Store;
pub use tiers::Tiers;
pub use writer::{Prober, Writer};

/// The example of the README, which registries show.
#[cfg(all(doctest, feature = "redis"))]
#[doc = include_str!("../README.md")]
struct Readme;
