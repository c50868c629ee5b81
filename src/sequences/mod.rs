//! The cache of many sequences, by numbers: a sequence is one, a transaction is one. Snapshots, prefixes and steps are objects.

mod attend;
mod cache;
mod draft;
mod options;
mod pool;
mod prefix;
mod sequence;
mod step;
