//! The planner of the paged cache: its calls, what they refuse and in which order, and what they change.
//!
//! ```text
//! paged_planner    sequences, blocks, counts, and what each call below has in common
//! write -> transaction, step         snapshot -> prefix -> admit, saved, below         step_tables -> read
//! ```
//!
//! The folders above this one decide; see [`super`].

mod admit;
mod below;
mod paged_planner;
mod prefix;
mod read;
mod saved;
mod snapshot;
mod step;
mod step_tables;
mod transaction;
mod write;

pub use admit::{Admission, AdmissionRequest, Admitted, Lacking, admit_in_groups};
pub use paged_planner::{PagedPlanner, PlannerCounters, PoolStats};
pub use prefix::{can_allocate_in_groups, explain_in_groups, find_in_groups, prompt_in_groups};
pub use saved::{SavedContent, SavedRow};
pub use step_tables::{NO_BLOCK, StepTableRows, StepTables};
