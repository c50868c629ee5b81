//! Values of stores that others run, many at a time: what is late, broken or wrong is a miss.
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
