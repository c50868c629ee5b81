//! Drafts behind committed and tentative tokens.
//!
//! What a draft keeps becomes like the token that it follows: committed, or tentative behind tentative tokens. O(new tokens)
//! amortised.

use kvtide_core::{Ending, TransactionId, Tree};

use super::RollbackCache;
use crate::base::error::Result;
use crate::base::memory::Budget;
use crate::contiguous::Contiguous;
use crate::contiguous::kv_pair::{check_pair, resolve_pair};
use crate::contiguous::transaction::Drafting;
use crate::tensor::buffer::RowShape;
use crate::tensor::resolved::Resolved;
use crate::tensor::shown::Shown;
use crate::tensor::source::Source;
use crate::tensor::tree_mask::TreeMask;

impl RollbackCache {
    fn add(&mut self, sources: &mut [Resolved<'_>], shape: RowShape, room: u32) -> Result<Shown> {
        let tokens = sources.first().map_or(0, Resolved::tokens);
        let plan = self.planner.plan_draft(tokens, room)?;
        let shown = self.rows.carry_out(&plan, plan.next.slots(), plan.next.len().into(), &shape, sources)?;
        self.planner.commit_draft(plan.next);
        self.shape = Some(shape);
        Ok(shown)
    }
}

impl Drafting for RollbackCache {
    fn rows(&self) -> &Contiguous {
        &self.rows
    }

    fn rows_mut(&mut self) -> &mut Contiguous {
        &mut self.rows
    }

    fn keep_before(&mut self) -> Result<()> {
        self.blank.try_reserve(1).map_err(|_| Budget::process().refusal(1))?;
        self.blank.push(self.shape.is_none());
        Ok(())
    }

    fn make_room(&mut self, tokens: u32) -> Result<()> {
        // Without a shape, the first tokens take it.
        let Some(shape) = self.shape else { return Ok(()) };
        self.planner.plan_draft(tokens, 0)?;
        self.add(&mut [], shape, tokens).map(|_| ())
    }

    fn draft(&mut self, id: TransactionId, k: &Source<'_>, v: &Source<'_>, parents: Option<&[i32]>) -> Result<Shown> {
        let mut sources = resolve_pair(k, v)?;
        check_pair(&sources, self.shape.as_ref())?;
        let shape = self.shape.unwrap_or_else(|| sources[0].row_shape(2));
        let tokens = sources[0].tokens();
        self.rows.drafts.check_append(id, tokens, parents)?;
        let shown = self.add(&mut sources, shape, self.rows.drafts.room())?;
        self.rows.drafts.append(tokens, parents);
        Ok(shown)
    }

    fn draft_slot(&self) -> u32 {
        self.total_len() - self.rows.drafts.drafted()
    }

    fn reserve_end(&mut self, ending: &Ending) -> Result<()> {
        if ending.is_outermost() {
            self.planner.reserve(ending.kept)?;
        }
        Ok(())
    }

    fn end(&mut self, ending: &Ending) {
        self.planner.cut(ending.dropped);
        if ending.is_outermost() {
            self.planner.keep_draft(ending.kept, self.rows.drafts.kept_parents(ending));
        }
        self.rows.drafts.end(ending);
        let blank = self.blank.get(self.rows.drafts.depth()).copied().unwrap_or(false);
        self.blank.truncate(self.rows.drafts.depth());
        if blank && ending.kept == 0 {
            self.shape = None;
            self.rows.release();
        }
    }

    fn tree_mask(&self) -> Result<TreeMask> {
        let tentative = self.planner.tree().len();
        let tree = Tree::joined([self.planner.tree(), self.rows.drafts.tree()])?;
        Ok(TreeMask { before: [0..self.committed_len().into(), 0..0], window: None, tree, tentative })
    }
}
