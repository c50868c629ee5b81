//! The cache of many sequences, by numbers: a sequence is one, a transaction is one. Snapshots, prefixes and steps are objects.

mod attend;
mod cache;
mod draft;
mod events;
mod model;
mod options;
mod pool;
mod prefix;
mod prefix_namer;
mod sequence;
mod sequence_batch;
mod step;
mod step_batch;
