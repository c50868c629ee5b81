//! Steps over all groups of layers in blocks: planned in each of them, then opened in each of them.
//!
//! ```text
//! plan, each group -> tables looked at -> open, each group -> tables written      refused before `open`: nothing has changed
//! ```
//!
//! O(blocks and runs) of each group.

use kvtide_core::paged::StepRows;

use super::paged::PagedGroups;
use super::store::Tables;
use crate::error::Result;
use crate::paged::{PagedStep, PlannedWrite, StepTokens};

impl PagedGroups {
    /// Begins a step in all groups, or in none.
    pub(super) fn begin_steps(&mut self, tokens: StepTokens<'_>) -> Result<Vec<PagedStep>> {
        let planned = self.plan_steps(tokens)?;
        self.open_steps(planned, tokens)
    }

    /// The same, its tables written down for each group.
    pub(super) fn prepare_steps(
        &mut self,
        tokens: StepTokens<'_>,
        rows: &mut [StepRows],
        tables: Tables<'_>,
    ) -> Result<Vec<PagedStep>> {
        let planned = self.plan_steps(tokens)?;
        for ((group, planned), (rows, tables)) in self.0.iter().zip(&planned).zip(rows.iter_mut().zip(&tables)) {
            group.prepare_tables(planned, rows, tables)?;
        }
        let steps = self.open_steps(planned, tokens)?;
        for ((group, step), (rows, tables)) in self.0.iter().zip(&steps).zip(rows.iter_mut().zip(tables)) {
            group.fill_tables(step, rows, tables)?;
        }
        Ok(steps)
    }

    /// Refuses a step that has ended, or one of whose sequences was dropped.
    pub(super) fn check_steps(&self, steps: &[PagedStep]) -> Result<()> {
        self.0.iter().zip(steps).try_for_each(|(group, step)| group.check_step(step))
    }

    /// Ends a step in all groups, or in none.
    pub(super) fn commit_steps(&mut self, steps: &mut [PagedStep], tokens: Option<&[u32]>) -> Result<()> {
        self.check(|_| Ok(()))?;
        for (group, step) in self.0.iter().zip(&*steps) {
            group.check_commit(step, tokens)?;
        }
        self.0.iter_mut().zip(steps).try_for_each(|(group, step)| group.commit_step(step, tokens))
    }

    /// Ends a step as if it had never been.
    pub(super) fn undo_steps(&mut self, steps: &mut [PagedStep]) -> Result<()> {
        self.check_change()?;
        self.0.iter_mut().zip(steps).try_for_each(|(group, step)| group.undo_step(step))
    }

    fn plan_steps(&mut self, tokens: StepTokens<'_>) -> Result<Vec<PlannedWrite>> {
        let groups = self.0.iter_mut().enumerate();
        groups.map(|(at, group)| group.plan_step(tokens).map_err(|error| error.in_group(at))).collect()
    }

    fn open_steps(&mut self, planned: Vec<PlannedWrite>, tokens: StepTokens<'_>) -> Result<Vec<PagedStep>> {
        self.0.iter_mut().zip(planned).map(|(group, planned)| group.open_step(planned, tokens)).collect()
    }
}
