//! Values of stores that others run, many at a time: what is late, broken or wrong is a miss.
//!
//! ```text
//! store       what a store does                        health   what it has done, and its changes
//! gate        whether it is asked, without a clock     fault    what can go wrong with it
//! backend     a store as it is: late, or broken        guarded  the same as one that never fails
//! redis       Redis and Valkey                         objects  S3, Google Cloud Storage, Azure
//! sealed      values with a secret's tag               compressed, planes   values in fewer bytes
//! ```
//!
//! Without features there are the traits, the gate and the wrappers, and no runtime. `redis` and `objects` bring theirs.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

#[cfg(feature = "client")]
mod backend;
mod compressed;
mod error;
mod fault;
mod gate;
#[cfg(feature = "client")]
mod guarded;
mod health;
#[cfg(feature = "objects")]
mod objects;
mod planes;
#[cfg(feature = "redis")]
mod redis;
mod sealed;
mod store;
#[cfg(feature = "redis")]
mod tls;

#[cfg(feature = "client")]
pub use backend::{Backend, Replies};
pub use compressed::{Compressed, compress, decompress};
pub use error::{Error, Result};
pub use fault::{Fault, FaultKind};
pub use gate::{Answered, Gate, GateOptions, Outcome, Permit, Refusal};
#[cfg(feature = "client")]
pub use guarded::{GuardOptions, Guarded, Watcher};
pub use health::{Event, Health, State};
#[cfg(feature = "objects")]
pub use objects::{ObjectStorage, ObjectStorageOptions};
#[cfg(feature = "redis")]
pub use redis::{Redis, RedisOptions};
pub use sealed::Sealed;
pub use store::Store;

/// The example of the page that registries show.
#[cfg(all(doctest, feature = "redis"))]
#[doc = include_str!("../README.md")]
struct Readme;
