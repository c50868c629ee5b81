//! Plans: what a change will do, in blocks and slots, before anything has changed.
//!
//! ```text
//! target -> share -> copy_plan -> write_plan, end_plan        each made from a state, which they read alone
//! ```

mod copy_plan;
mod end_plan;
mod share;
mod state;
mod target;
mod write_plan;

pub use copy_plan::{BlockCopy, CopyPlan, SharedBlocks};
pub use end_plan::{EndPlan, Keep, RowMove};
pub use share::{CheckedWrite, Share};
pub use state::PlannerState;
pub use target::{Append, WriteTarget, Writer};
pub use write_plan::{PageWrite, Seal, SlotRun, StagingContent, WritePlan};
