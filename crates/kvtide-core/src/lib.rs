//! The planners of KV caches: all decisions, in integers.
//!
//! Every cache is a *planner*: a call to append, truncate or restore returns a [`Plan`] of token slots and changes
//! nothing. An executor (the crate `kvtide-tensor`) carries the plan out on tensors, then commits it. This crate uses
//! no tensors, clocks, threads or I/O, so planners are tested by simulation.
//!
//! ```text
//! plan = planner.plan_append(n)?    on error, nothing has changed
//! executor.carry_out(&plan)?        on error, the bookkeeping is as it was
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
pub use count::{COUNT_MAX, CURRENT_MAX, count, count_positive};
pub use detail::{Detail, DetailValue};
pub use drafts::{Drafts, Ending, TransactionId};
pub use error::{BlockHolders, Error, Result, counted, holding, there_are};
pub use growable::{GrowablePlanner, GrowableState};
pub use plan::{Plan, Reads, SlotMove, SlotWrite};
pub use rollback::{Mark, RollbackPlanner};
pub use rotating::{RotatingOptions, RotatingPlanner, RotatingState, default_slack};
pub use run::{Run, Runs};
pub use tree::Tree;
pub use write_log::{Stamp, WriteLog};

/// Tests the example of the crate's README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
