//! Transactions on a sequence of a group: what is drafted leaves no trace in its blocks unless it is committed.

use std::sync::Arc;

use kvtide_core::paged::Keep;
use kvtide_core::{TransactionId, Tree};

use super::group::PageGroup;
use crate::base::error::Result;
use crate::base::memory::Budget;
use crate::contiguous::transaction::BeginOptions;
use crate::tensor::tree_mask::{Sight, TreeMask};
use crate::tensor::view::View;

impl PageGroup {
    /// Opens a transaction, with the blocks that it asks for or not at all.
    pub fn begin_with(
        &mut self,
        sequence: u64,
        parent: Option<TransactionId>,
        options: BeginOptions,
    ) -> Result<TransactionId> {
        self.change()?;
        if options.max_tokens.is_none() {
            return Ok(self.planner.begin(sequence, parent)?);
        }
        self.planner.check_begin(sequence, parent)?;
        let tokens = self.draft_end(sequence, options)?.unwrap_or(0);
        Ok(self.planner.begin_with(sequence, parent, tokens)?)
    }

    /// Refuses what committing its tokens would refuse.
    pub fn check_end(&self, sequence: u64, id: TransactionId) -> Result<()> {
        self.planner.plan_end(sequence, id, Keep::All).map(drop).map_err(Into::into)
    }

    /// Refuses what [`PageGroup::reserve_draft`] would refuse, but for memory of the bookkeeping.
    pub fn check_reserve(&self, sequence: u64, options: BeginOptions) -> Result<()> {
        match self.draft_end(sequence, options)? {
            Some(tokens) => Ok(self.planner.check_room(sequence, tokens)?),
            None => Ok(()),
        }
    }

    /// Takes the blocks that a transaction which was opened asks for.
    pub fn reserve_draft(&mut self, sequence: u64, options: BeginOptions) -> Result<()> {
        match self.draft_end(sequence, options)? {
            Some(tokens) => Ok(self.planner.reserve_draft(sequence, tokens)?),
            None => Ok(()),
        }
    }

    /// The tokens of a sequence that there is to be room for.
    fn draft_end(&self, sequence: u64, options: BeginOptions) -> Result<Option<u32>> {
        let wanted = |tokens: u32| u64::from(self.sequence_length(sequence)) + u64::from(tokens);
        Ok(options.max_tokens.map(|tokens| kvtide_core::count("maxTokens", wanted(tokens))).transpose()?)
    }

    /// Ends a transaction as if it had never been; nothing where it has ended.
    pub fn drop_draft(&mut self, sequence: u64, id: TransactionId) {
        // A sequence that was dropped took its transactions along, and a cache without memory for this says so elsewhere.
        if self.planner.undo(sequence, id).is_err() && self.planner.gap(sequence).is_ok() {
            self.poisoned = true;
        }
    }

    /// What the tokens of a transaction see, in memory of `budget`.
    pub fn draft_mask(&self, sequence: u64, id: TransactionId, budget: &Arc<Budget>) -> Result<View> {
        let (mask, first) = self.mask(sequence, id)?;
        mask.view(first, budget)
    }

    /// The positions of a transaction's tokens.
    pub fn draft_positions(&self, sequence: u64, id: TransactionId) -> Result<Vec<u64>> {
        let (mask, first) = self.mask(sequence, id)?;
        Ok(mask.positions(first))
    }

    /// The mask of all drafts, and the first node of one of them. Refused while a step brings more nodes.
    fn mask(&self, sequence: u64, id: TransactionId) -> Result<(TreeMask, usize)> {
        self.check()?;
        let planner = &self.planner;
        planner.check_resting(sequence)?;
        let first = planner.draft_first(sequence, id)? as usize;
        let tree = Tree::joined([planner.draft_tree(sequence)?])?;
        let (committed, gap) = (planner.committed_length(sequence).into(), planner.gap(sequence)?);
        let before = match gap.is_empty() {
            true => [0..committed, 0..0],
            false => [0..gap.start.into(), gap.end.into()..committed],
        };
        let window = planner.window().map(Sight::from);
        Ok((TreeMask { before, window, tree, tentative: 0 }, first))
    }
}
