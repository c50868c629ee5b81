//! The planner of the paged cache: its calls, their errors and the order of checks, and their changes.
//!
//! ```text
//! paged_planner    sequences, blocks, counts, and the common parts of the calls below
//! write -> transaction, step         snapshot -> prefix -> admit, growth, saved, below         step_tables -> read
//! ```
//!
//! The folders above this one make the decisions; see [`super`].
//!
//! A call that returns an error has changed nothing. Each file states the costs of its calls.

mod admit;
mod below;
mod growth;
mod paged_planner;
mod prefix;
mod read;
mod saved;
mod snapshot;
mod states;
mod step;
mod step_tables;
mod transaction;
mod write;

pub use admit::{Admission, AdmissionRequest, Admitted, Lacking, admit_in_groups};
pub use growth::{Growth, GrowthRequest, Shortage, shortage_in_groups};
pub use paged_planner::{PagedPlanner, PlannerCounters, PoolStats};
pub use prefix::{
    can_allocate_in_groups, explain_in_groups, find_in_groups, find_named_in_groups, prompt_in_groups,
    prompt_in_groups_again,
};
pub use saved::{SavedContent, SavedRow};
pub use states::{PromptStates, prompt_states};
pub use step_tables::{NO_BLOCK, StepTableRows, StepTables};
