//! Transactions on a sequence of a group: drafted tokens leave no trace in its blocks unless they are committed.

use std::sync::Arc;

use kvtide_core::paged::{CopyPlan, EndPlan, Keep, WriteTarget};
use kvtide_core::{TransactionId, Tree};

use super::group::PageGroup;
use super::scratch::Scratch;
use crate::base::error::Result;
use crate::base::memory::Budget;
use crate::contiguous::transaction::BeginOptions;
use crate::tensor::tree_mask::{Sight, TreeMask};
use crate::tensor::view::View;

/// The planned end of a draft, whose memory is reserved.
#[derive(Debug)]
#[must_use = "the draft has not ended until the plan is carried out"]
pub(crate) struct PlannedEnd {
    copies: CopyPlan,
    plan: EndPlan,
    scratch: Scratch,
}

impl PageGroup {
    /// Checks everything that opening a transaction checks, except the blocks that it reserves.
    pub fn check_begin(&mut self, sequence: u64, parent: Option<TransactionId>) -> Result<()> {
        Ok(self.planner.check_begin(sequence, parent)?)
    }

    /// Opens a transaction.
    pub fn begin(&mut self, sequence: u64, parent: Option<TransactionId>) -> Result<TransactionId> {
        self.change()?;
        Ok(self.planner.begin(sequence, parent)?)
    }

    /// Checks everything that committing all its tokens checks.
    pub fn check_end(&self, sequence: u64, id: TransactionId) -> Result<()> {
        self.planner.plan_end(sequence, id, Keep::All).map(drop).map_err(Into::into)
    }

    /// Checks everything that [`PageGroup::reserve_draft`] checks, except memory for bookkeeping.
    pub fn check_reserve(&self, sequence: u64, options: BeginOptions) -> Result<()> {
        match self.draft_end(sequence, options)? {
            Some(tokens) => Ok(self.planner.check_room(sequence, tokens)?),
            None => Ok(()),
        }
    }

    /// Reserves the blocks that a transaction asks for after it was opened.
    pub fn reserve_draft(&mut self, sequence: u64, options: BeginOptions) -> Result<()> {
        match self.draft_end(sequence, options)? {
            Some(tokens) => {
                self.planner.check_resting(sequence)?;
                let wanted = [(sequence, tokens)];
                let missing = self.missing_blocks(&wanted)?;
                self.take_missing(&wanted, &missing);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// The number of tokens for which a sequence needs room.
    fn draft_end(&self, sequence: u64, options: BeginOptions) -> Result<Option<u32>> {
        let wanted = |tokens: u32| u64::from(self.planner.sequence_length(sequence)) + u64::from(tokens);
        Ok(options.max_tokens.map(|tokens| kvtide_core::count("maxTokens", wanted(tokens))).transpose()?)
    }

    /// Plans the end of a draft and reserves its memory: after that, the end cannot fail for lack of memory.
    ///
    /// Pages that the draft fills are quantised. A page that a snapshot or a fork also holds stays as it is for them: the
    /// sequence gets a copy if there is a free block, else the page stays in floats.
    pub fn plan_end(&mut self, sequence: u64, id: TransactionId, keep: Keep<'_>) -> Result<PlannedEnd> {
        self.change()?;
        let moved = match keep {
            Keep::Path(path) => Some(self.planner.path_target(sequence, id, path)?),
            _ => None,
        };
        let mut plan = self.planner.plan_end(sequence, id, keep)?;
        let copies = match self.filled(sequence, id, keep, moved.as_ref())? {
            Some(filled) => self.planner.plan_copies(&[filled]).or_else(|_| self.planner.plan_copies(moved.as_slice())),
            None => self.planner.plan_copies(moved.as_slice()),
        }?;
        if !(copies.copies().is_empty() && plan.moves().is_empty() && plan.seals().is_empty()) {
            self.check_pages()?;
        }
        let is_scratch_used = !plan.seals().is_empty() || !copies.copies().is_empty();
        let scratch = Scratch::new(self.shape(), usize::from(is_scratch_used))?;
        let staging_pages = self.planner.reserve_end(&copies, &mut plan)?;
        self.hand_down_evicted();
        self.reserve_staging(staging_pages)?;
        Ok(PlannedEnd { copies, plan, scratch })
    }

    /// The kept tokens of an outermost draft in the low-bit pages that they fill, including those of a path that move.
    fn filled(
        &self,
        sequence: u64,
        id: TransactionId,
        keep: Keep<'_>,
        moved: Option<&WriteTarget>,
    ) -> Result<Option<WriteTarget>> {
        let planner = &self.planner;
        if !self.shape().pages.is_low_bit() || planner.draft_first(sequence, id)? > 0 {
            return Ok(None);
        }
        let kept = match keep {
            Keep::All => planner.drafted(sequence, id)?,
            Keep::First(tokens) => tokens as u32,
            Keep::Path(path) => path.len() as u32,
        };
        let (position, size) = (planner.committed_length(sequence), planner.block_size());
        let end = position + kept;
        let whole = end / size * size;
        let until = if moved.is_some_and(|of| of.tokens > 0) { end } else { whole };
        Ok((whole > position).then(|| WriteTarget { sequence, position, tokens: until - position }))
    }

    /// Ends a draft as planned.
    pub fn carry_out_end(&mut self, planned: PlannedEnd) -> Result<()> {
        let PlannedEnd { copies, mut plan, scratch } = planned;
        self.poisoned = true;
        self.copy_blocks(&copies)?;
        self.planner.commit_copies_before_end(&copies, &mut plan)?;
        self.slabs.move_rows(&self.planner, plan.moves())?;
        self.slabs.seal(plan.seals(), &scratch)?;
        self.planner.end(&plan)?;
        self.poisoned = false;
        Ok(())
    }

    /// Rolls a transaction back; does nothing if it has ended.
    pub fn drop_draft(&mut self, sequence: u64, id: TransactionId) {
        // If the sequence was dropped, its transactions are gone too, and that is no error.
        if self.planner.undo(sequence, id).is_err() && self.planner.gap(sequence).is_ok() {
            self.poisoned = true;
        }
    }

    /// The attention mask of a transaction's tokens, in memory of `budget`.
    pub fn draft_mask(&self, sequence: u64, id: TransactionId, budget: &Arc<Budget>) -> Result<View> {
        let (mask, first) = self.mask(sequence, id)?;
        mask.view(first, budget)
    }

    /// The positions of a transaction's tokens.
    pub fn draft_positions(&self, sequence: u64, id: TransactionId) -> Result<Vec<u64>> {
        let (mask, first) = self.mask(sequence, id)?;
        Ok(mask.positions(first))
    }

    /// The mask of all drafts, and the first node of one of them. Fails while a step adds more nodes.
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
