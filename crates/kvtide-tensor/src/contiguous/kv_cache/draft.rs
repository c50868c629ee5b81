//! Drafts behind a growing cache: its own appends and truncates. O(new tokens) amortised.

use kvtide_core::{Ending, TransactionId, Tree};

use super::KvCache;
use crate::base::error::Result;
use crate::contiguous::Contiguous;
use crate::contiguous::kv_pair::{check_pair, resolve_pair};
use crate::contiguous::transaction::Drafting;
use crate::tensor::resolved::Resolved;
use crate::tensor::shown::Shown;
use crate::tensor::source::Source;
use crate::tensor::tree_mask::{Sight, TreeMask};

impl KvCache {
    fn add(&mut self, sources: &mut [Resolved<'_>], room: u32) -> Result<Shown> {
        let tokens = sources.first().map_or(0, Resolved::tokens);
        let plan = self.planner.plan_append_with_room(tokens, room)?;
        let shown = self.rows.carry_out(&plan, plan.next.slots(), plan.next.len().into(), &self.shape, sources)?;
        self.planner.commit(plan.next);
        Ok(shown)
    }
}

impl KvCache {
    /// Refuses so many more tokens than it may hold.
    pub(crate) fn check_room(&self, tokens: u32) -> Result<()> {
        self.planner.plan_append(tokens)?;
        Ok(())
    }
}

impl Drafting for KvCache {
    fn rows(&self) -> &Contiguous {
        &self.rows
    }

    fn rows_mut(&mut self) -> &mut Contiguous {
        &mut self.rows
    }

    fn make_room(&mut self, tokens: u32) -> Result<()> {
        self.check_room(tokens)?;
        self.add(&mut [], tokens).map(|_| ())
    }

    fn draft(&mut self, id: TransactionId, k: &Source<'_>, v: &Source<'_>, parents: Option<&[i32]>) -> Result<Shown> {
        let mut sources = resolve_pair(k, v)?;
        check_pair(&sources, Some(&self.shape))?;
        let tokens = sources[0].tokens();
        self.rows.drafts.check_append(id, tokens, parents)?;
        let shown = self.add(&mut sources, self.rows.drafts.room())?;
        self.rows.drafts.append(tokens, parents);
        Ok(shown.of_tree(self.rows.drafts.is_branched()))
    }

    fn draft_slot(&self) -> u32 {
        self.seq_len() - self.rows.drafts.drafted()
    }

    fn end(&mut self, ending: &Ending) {
        self.planner.cut(ending.dropped);
        self.rows.drafts.end(ending);
    }

    fn tree_mask(&self) -> Result<TreeMask> {
        let tree = Tree::joined([self.rows.drafts.tree()])?;
        let window = self.rows.window().map(Sight::from);
        Ok(TreeMask { before: [0..self.draft_slot().into(), 0..0], window, tree, tentative: 0 })
    }
}
