//! The paged cache. Sequences and transactions are numbers; snapshots, prefixes, steps and their runs are objects. If
//! JavaScript loses an object, its blocks are released at the cache's next call.

mod attend;
pub(crate) mod cache;
mod draft;
pub(crate) mod lent_run;
mod model;
mod options;
mod pool;
pub(crate) mod prefix;
mod sequence;
mod step;
pub(crate) mod step_run;
