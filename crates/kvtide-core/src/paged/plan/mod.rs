//! Plans: what a change will do, in blocks and slots, before anything has changed.
//!
//! ```text
//! checked_write -> write_plan -> end_plan        each made from a state, which they read alone
//! ```

mod checked_write;
mod end_plan;
mod write_plan;

pub use checked_write::{Append, CheckedWrite, PlannerState, Share, WriteTarget, Writer};
pub use end_plan::{EndPlan, Keep, RowMove, Seal};
pub use write_plan::{BlockCopy, CopyPlan, PageWrite, SlotRun, StagingContent, WritePlan};
