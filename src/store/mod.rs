//! What outlives the process: caches and sequences in files, or as bytes; and tiers below a cache, with the stores in which they lie.

mod envelope;
mod load;
#[cfg(feature = "net")]
pub(crate) mod runtime;
mod save;
mod shared_store;
#[cfg(feature = "net")]
mod store_services;
mod tensors;
pub(crate) mod tiers;
mod watch;
