//! The cache of many sequences, by numbers: a sequence is one, a transaction is one. Snapshots, prefixes, steps and their runs are objects.

mod attend;
mod cache;
mod draft;
mod lent_run;
mod options;
mod pool;
mod prefix;
mod sequence;
mod step;
pub(crate) mod step_run;
