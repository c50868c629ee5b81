//! The planner of the paged cache: which calls there are, what they refuse and in which order, and what they change.
//!
//! ```text
//! paged_planner    sequences, blocks, counts, and what each call below has in common
//! write -> transaction, step         snapshot -> prefix         step_tables -> read
//! ```
//!
//! What a call decides lies in the folders before this one: `pages`, `index`, `pool`, `table`, `sequence`, `plan`, each of which takes
//! only from those before it.

mod paged_planner;
mod prefix;
mod read;
mod snapshot;
mod step;
mod step_tables;
mod transaction;
mod write;

pub use paged_planner::{PagedPlanner, PlannerCounters, PoolStats};
pub use prefix::{can_allocate_in_groups, explain_in_groups, find_in_groups};
pub use step_tables::{NO_BLOCK, StepTableRows, StepTables};
