//! Transactions of sequences in blocks: one in each group, of the same number in all of them.
//!
//! So that the numbers stay the same, a transaction is opened in every group before room is taken in the first. O(groups).

use std::sync::Arc;

use kvtide_core::TransactionId;
use kvtide_core::model::LayerPlace;
use kvtide_core::paged::Keep;

use super::paged::PagedGroups;
use super::store::{DraftStore, Store};
use crate::error::Result;
use crate::memory::Budget;
use crate::transaction::{BeginOptions, Transactional};
use crate::view::View;

impl DraftStore for PagedGroups {
    fn begin(&mut self, sequence: u64, parent: Option<TransactionId>, options: BeginOptions) -> Result<TransactionId> {
        self.check(|group| {
            group.planner.check_begin(sequence, parent)?;
            group.check_reserve(sequence, options)
        })?;
        let id = self.each(|group| group.sequence(sequence)?.begin_draft(parent, Default::default()))?;
        match self.each(|group| group.reserve_draft(sequence, options)) {
            Ok(()) => Ok(id),
            Err(refusal) => {
                self.drop_draft(sequence, id);
                Err(refusal)
            }
        }
    }

    fn drafted(&mut self, sequence: u64, id: TransactionId) -> Result<u32> {
        self.collect()?;
        Ok(self.first().planner.drafted(sequence, id)?)
    }

    fn check_draft(&mut self, sequence: u64, id: TransactionId) -> Result<()> {
        self.check(|group| group.check_end(sequence, id))
    }

    fn commit(&mut self, sequence: u64, id: TransactionId, tokens: Option<u64>) -> Result<()> {
        self.end(sequence, id, tokens.map_or(Keep::All, Keep::First))
    }

    fn commit_path(&mut self, sequence: u64, id: TransactionId, path: &[u32]) -> Result<()> {
        self.end(sequence, id, Keep::Path(path))
    }

    fn drop_draft(&mut self, sequence: u64, id: TransactionId) {
        for group in &mut self.0 {
            if let Ok(mut of) = group.sequence(sequence) {
                of.drop_draft(id);
            }
        }
    }

    fn draft_mask(
        &mut self,
        (sequence, id): (u64, TransactionId),
        place: LayerPlace,
        budget: &Arc<Budget>,
    ) -> Result<View> {
        self.collect()?;
        let group = &mut self.0[place.group as usize];
        group.planner.check_resting(sequence)?;
        group.sequence(sequence)?.draft_mask(id, budget)
    }

    fn draft_positions(&mut self, sequence: u64, id: TransactionId) -> Result<Vec<u64>> {
        self.collect()?;
        // Tokens have the same positions in all groups.
        let group = &mut self.0[0];
        group.planner.check_resting(sequence)?;
        group.sequence(sequence)?.draft_positions(id)
    }
}
