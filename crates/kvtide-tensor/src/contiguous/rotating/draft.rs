//! Drafts behind the window of K and V.
//!
//! Everything from the window's start on stays until the outermost transaction has ended; then the window moves on as if what
//! was kept had been appended. O(new tokens) amortised.

use kvtide_core::{Ending, TransactionId, Tree};

use super::RotatingKvCache;
use super::window::{Before, LastAppend};
use crate::base::error::Result;
use crate::base::memory::Budget;
use crate::contiguous::Contiguous;
use crate::contiguous::kv_pair::{check_pair, resolve_pair};
use crate::contiguous::transaction::Drafting;
use crate::tensor::buffer::RowShape;
use crate::tensor::resolved::Resolved;
use crate::tensor::shown::Shown;
use crate::tensor::source::Source;
use crate::tensor::tree_mask::{Sight, TreeMask};

impl RotatingKvCache {
    fn add(&mut self, sources: &mut [Resolved<'_>], shape: RowShape, room: u32, whole: bool) -> Result<Shown> {
        let tokens = sources.first().map_or(0, Resolved::tokens);
        let plan = self.planner.plan_draft(tokens, room, whole)?;
        let shown = self.rows.carry_out(&plan, plan.next.slots(), plan.next.current(), &shape, sources)?;
        self.planner.commit_draft(plan.next);
        self.shape = Some(shape);
        Ok(shown.of_tree(whole))
    }
}

impl Drafting for RotatingKvCache {
    fn rows(&self) -> &Contiguous {
        &self.rows
    }

    fn rows_mut(&mut self) -> &mut Contiguous {
        &mut self.rows
    }

    fn keep_before(&mut self) -> Result<()> {
        self.before.try_reserve(1).map_err(|_| Budget::process().refusal(1))?;
        self.before.push(Before { last: self.last.clone(), blank: self.shape.is_none() });
        Ok(())
    }

    fn make_room(&mut self, tokens: u32) -> Result<()> {
        // Without a shape, the first tokens take it.
        let Some(shape) = self.shape else { return Ok(()) };
        self.add(&mut [], shape, tokens, false).map(|_| ())
    }

    fn draft(&mut self, id: TransactionId, k: &Source<'_>, v: &Source<'_>, parents: Option<&[i32]>) -> Result<Shown> {
        let mut sources = resolve_pair(k, v)?;
        check_pair(&sources, self.shape.as_ref())?;
        let shape = self.shape.unwrap_or_else(|| sources[0].row_shape(2));
        let tokens = sources[0].tokens();
        self.rows.drafts.check_append(id, tokens, parents)?;
        let shown = if tokens == 0 && self.current_seq_len() == 0 {
            // The shape stays open, and nothing is there to show.
            self.rows.show_none(shape)?
        } else {
            let whole = parents.is_some() || self.rows.drafts.is_branched();
            self.add(&mut sources, shape, self.rows.drafts.room(), whole)?
        };
        self.rows.drafts.append(tokens, parents);
        self.last = Some(LastAppend { shown: shown.clone(), tokens });
        Ok(shown)
    }

    fn draft_slot(&self) -> u32 {
        self.planner.draft_slot(self.rows.drafts.drafted())
    }

    fn end(&mut self, ending: &Ending) {
        self.planner.cut(ending.dropped);
        self.rows.drafts.end(ending);
        let before = self.before.get(self.rows.drafts.depth()).cloned();
        self.before.truncate(self.rows.drafts.depth());
        if ending.kept > 0 {
            let runs = self.planner.reads(ending.kept, self.rows.drafts.is_branched());
            let shown = self.rows.show(runs, self.planner.state().current());
            let is_tree = self.rows.drafts.is_branched();
            self.last = shown.map(|shown| LastAppend { shown: shown.of_tree(is_tree), tokens: ending.kept });
        } else if let Some(Before { last, blank }) = before {
            self.last = last;
            if blank {
                self.shape = None;
                self.rows.release();
            }
        }
        if ending.is_outermost() {
            self.planner.settle();
        }
    }

    fn tree_mask(&self) -> Result<TreeMask> {
        let drafted = self.rows.drafts.drafted();
        let mut kept = self.planner.clone();
        kept.cut(drafted);
        let before = kept.state();
        let window = u64::from(before.retained() - before.held());
        let runs = [0..before.held().into(), before.current() - window..before.current()];
        let tree = Tree::joined([self.rows.drafts.tree()])?;
        Ok(TreeMask { before: runs, window: self.rows.window().map(Sight::from), tree, tentative: 0 })
    }
}
