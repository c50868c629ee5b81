//! What a KV cache does, decided in integers.
//!
//! Every cache is a *planner*: asked to append, truncate or restore, it answers with a [`Plan`] of token slots and
//! changes nothing. An executor (the crate `kvtide-tensor`) carries the plan out on tensors, then commits it. No tensor,
//! clock, thread or I/O is found here, so a planner is tested by simulation.
//!
//! ```text
//! plan = planner.plan_append(n)?    refused: nothing has changed
//! executor.carry_out(&plan)?        failed: the bookkeeping is as it was
//! planner.commit(&plan)
//! ```
#![forbid(unsafe_code)]
#![deny(missing_docs)]

#[macro_use]
mod code;
mod count;
mod detail;
mod drafts;
mod error;
mod growable;
pub mod model;
pub mod paged;
mod plan;
mod rollback;
mod rotating;
mod run;
mod tree;
mod write_log;

pub use code::Code;
pub use count::{COUNT_MAX, count, count_positive};
pub use detail::{Detail, DetailValue};
pub use drafts::{Drafts, Ending, TransactionId};
pub use error::{Error, Result, counted, there_are};
pub use growable::{GrowablePlanner, GrowableState};
pub use plan::{Plan, Reads, SlotMove, SlotWrite, path_moves};
pub use rollback::{Mark, RollbackPlanner};
pub use rotating::{RotatingOptions, RotatingPlanner, RotatingState, default_slack};
pub use run::{Run, Runs};
pub use tree::Tree;
pub use write_log::{Stamp, WriteLog};

/// The example of the page that registries show.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
