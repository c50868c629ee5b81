//! The cache of many sequences, by numbers: a sequence is one, a transaction is one. Snapshots, prefixes, steps and their runs are objects.

mod attend;
pub(crate) mod cache;
mod draft;
mod lent_run;
mod options;
mod pool;
pub(crate) mod prefix;
mod sequence;
mod step;
pub(crate) mod step_run;
