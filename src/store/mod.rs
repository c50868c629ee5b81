//! What outlives the process: caches and sequences in files, or as bytes; and tiers below a cache, with the stores in which they lie.

mod envelope;
mod load;
mod runtime;
mod save;
mod shared_store;
mod tensors;
mod tiers;
mod watch;
