//! The planner of the paged cache: which calls there are, what they refuse and in which order, and what they change.
//!
//! ```text
//! paged_planner       sequences, blocks, counts                       then, each with its own calls:
//! write, transaction, step, snapshot, prefix, read, check             step_tables, groups
//! ```
//!
//! What a call decides lies in the folders before this one: `pages`, `index`, `pool`, `table`, `sequence`, `plan`, each of which takes
//! only from those before it.

mod check;
mod groups;
mod paged_planner;
mod prefix;
mod read;
mod snapshot;
mod step;
mod step_tables;
mod transaction;
mod write;

pub use groups::{can_allocate_in_groups, explain_in_groups, find_in_groups};
pub use paged_planner::{Counters, PagedPlanner, PoolStats};
pub use step_tables::{NO_BLOCK, StepRows, StepTables};
