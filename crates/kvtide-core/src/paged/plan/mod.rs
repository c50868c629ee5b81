//! Plans: the blocks and slots that a change will use. Making a plan changes nothing.
//!
//! ```text
//! checked_write, page_write -> write_plan -> end_plan        each is made from a planner's state, which it only reads
//! ```
//!
//! A plan is valid until the next change of the planner. Making one costs O(blocks and runs), plus O(layers) for staged pages.

mod checked_write;
mod end_plan;
mod page_write;
mod write_plan;

pub use checked_write::{Append, CheckedWrite, PlannerState, Share, WriteTarget, Writer};
pub use end_plan::{EndPlan, Keep, RowMove};
pub use page_write::{PageWrite, Seal, SlotRun, StagingContent};
pub use write_plan::{BlockCopy, CopyPlan, WritePlan};
