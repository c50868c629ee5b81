//! A write or the end of a draft with the copies before it, planned together: once that is granted, nothing is refused any more.
//!
//! ```text
//! copies = which blocks others see as well     plan = what is written, as if there were no copies
//! memory of the bookkeeping for both, of the values of a head, and of the staging slab: or nothing has changed
//! blocks copied, the plan made to write to the copies
//! ```
//!
//! So a call that is refused leaves no copy behind, and of several groups of layers all do what was asked, or none. What fails
//! behind that is a fault, and poisons the cache. O(blocks), and O(bytes of the copies).

use kvtide_core::TransactionId;
use kvtide_core::paged::{CheckedWrite, CopyPlan, EndPlan, Keep, WritePlan};

use super::scratch::Scratch;
use crate::base::error::Result;
use crate::paged::PageGroup;

/// A write whose memory is there.
#[derive(Debug)]
#[must_use = "nothing is written until it is carried out"]
pub(crate) struct PlannedWrite {
    copies: CopyPlan,
    pub(super) plan: WritePlan,
    pub(super) scratch: Scratch,
}

/// The end of a draft whose memory is there.
#[derive(Debug)]
#[must_use = "nothing has ended until it is carried out"]
pub(crate) struct PlannedEnd {
    copies: CopyPlan,
    plan: EndPlan,
    scratch: Scratch,
}

impl PageGroup {
    /// Plans a write that was checked, and takes the memory of it.
    pub(super) fn plan_write(&mut self, write: CheckedWrite) -> Result<PlannedWrite> {
        let (copies, plan) = self.planner.plan_write(write)?;
        let scratch = self.shape.scratch_of(&plan, !copies.copies().is_empty())?;
        let staging_pages = self.planner.reserve_after(&copies, &plan)?;
        self.reserve_staging(staging_pages)?;
        Ok(PlannedWrite { copies, plan, scratch })
    }

    /// Copies what others see as well; then the plan writes where nobody else looks.
    pub(super) fn copy_before(&mut self, planned: &mut PlannedWrite) -> Result<()> {
        self.copy_blocks(&planned.copies)?;
        Ok(self.planner.commit_copies_before(&planned.copies, &mut planned.plan)?)
    }

    /// Plans the end of a draft, and takes the memory of it.
    pub(crate) fn plan_end(&mut self, sequence: u64, id: TransactionId, keep: Keep<'_>) -> Result<PlannedEnd> {
        self.change()?;
        let target = match keep {
            Keep::Path(path) => Some(self.planner.path_target(sequence, id, path)?),
            _ => None,
        };
        let copies = self.planner.plan_copies(target.as_slice())?;
        let mut plan = self.planner.plan_end(sequence, id, keep)?;
        let scratch = Scratch::new(&self.shape, usize::from(!plan.seals().is_empty() || !copies.copies().is_empty()))?;
        let staging_pages = self.planner.reserve_end(&copies, &mut plan)?;
        self.reserve_staging(staging_pages)?;
        Ok(PlannedEnd { copies, plan, scratch })
    }

    /// Ends a draft as planned.
    pub(crate) fn carry_out_end(&mut self, mut planned: PlannedEnd) -> Result<()> {
        let PlannedEnd { copies, plan, scratch } = &mut planned;
        self.poisoned = true;
        self.copy_blocks(copies)?;
        self.planner.commit_copies_before_end(copies, plan)?;
        self.move_rows(plan.moves())?;
        self.seal(plan.seals(), scratch)?;
        self.planner.end(plan)?;
        self.poisoned = false;
        Ok(())
    }
}
