//! The rotating cache of K and V, and drafts after its window.
//!
//! Everything from the start of the window on is kept until the outermost transaction has ended; then the window moves as if
//! the committed tokens had been appended. O(new tokens) amortised.

use std::sync::Arc;

use kvtide_core::{Ending, Tree};

use super::window::{LastAppend, Rotating, RotatingSnapshot};
use crate::base::error::Result;
use crate::base::memory::Budget;
use crate::contiguous::Contiguous;
use crate::contiguous::transaction::Drafting;
use crate::tensor::shown::Shown;
use crate::tensor::source::{Resolved, Source, check_pair, resolve_pair};
use crate::tensor::tree_mask::{Sight, TreeMask};
use crate::tensor::view::Kv;

/// K and V with one sliding window, written in one operation.
pub type RotatingKvCache = Rotating<2>;

impl Rotating<2> {
    /// Appends tokens, `[batch, kv_heads, n, head_dim]` each, and returns the tokens that their queries may attend to, like
    /// [`RotatingCache::append`](Rotating::append).
    pub fn append<'a>(&mut self, k: impl Into<Source<'a>>, v: impl Into<Source<'a>>) -> Result<Kv> {
        Ok(self.append_shown(k, v)?.into_kv())
    }

    /// Like [`append`](Self::append), without making views.
    pub fn append_shown<'a>(&mut self, k: impl Into<Source<'a>>, v: impl Into<Source<'a>>) -> Result<Shown> {
        self.rows.check_undrafted()?;
        let mut sources = resolve_pair(&k.into(), &v.into())?;
        check_pair(&sources, self.rows.shape.as_ref())?;
        self.append_parts(&mut sources)
    }

    /// Views of the retained tokens, oldest first.
    pub fn current_data(&self) -> Result<Option<Kv>> {
        Ok(self.current_shown()?.map(Shown::into_kv))
    }

    /// The result of the last append.
    #[must_use]
    pub fn last_append_result(&self) -> Option<Kv> {
        self.last_append_shown().map(Shown::into_kv)
    }

    /// Views of the whole buffers, which show later writes; for inspection.
    pub fn all_data(&self) -> Result<Option<Kv>> {
        Ok(self.all_shown()?.map(Shown::into_kv))
    }

    /// The accepted tokens of row `row` of `batch` in the last append, which began at `snapshot`.
    pub fn accepted_append_from_batched_append(
        &self,
        snapshot: &RotatingSnapshot<2>,
        keep_len: u64,
        row: u64,
        batch: u64,
    ) -> Result<Option<Kv>> {
        Ok(self.accepted_parts(snapshot, keep_len, row, batch)?.map(Kv::from))
    }

    /// A new cache that continues from `snapshot` with the `accepted` tokens of K and V, `keep_len` in all.
    pub fn restore_from_snapshot<'a>(
        snapshot: &RotatingSnapshot<2>,
        accepted: Option<(Source<'a>, Source<'a>)>,
        keep_len: u64,
    ) -> Result<Self> {
        match accepted {
            Some((k, v)) => {
                let mut sources = resolve_pair(&k, &v)?;
                check_pair(&sources, None)?;
                Self::restored(snapshot, &mut sources, keep_len)
            }
            None => Self::restored(snapshot, &mut [], keep_len),
        }
    }

    fn add(&mut self, sources: &mut [Resolved<'_>], room: u32, whole: bool) -> Result<Shown> {
        let tokens = sources.first().map_or(0, Resolved::tokens);
        let plan = self.planner.plan_draft(tokens, room, whole)?;
        let shown = self.rows.carry_out(&plan, plan.next.slots(), plan.next.current(), sources)?;
        self.planner.commit_draft(plan.next);
        Ok(shown.of_tree(whole))
    }
}

#[expect(dead_code, reason = "keeps the promise that a cache may move to another thread")]
fn caches_are_send() {
    fn send<T: Send>() {}
    send::<RotatingKvCache>();
    send::<Arc<RotatingSnapshot<2>>>();
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
        self.before.push(self.last.clone());
        Ok(())
    }

    fn make_room(&mut self, tokens: u32) -> Result<()> {
        // If the shape is not known yet, the first tokens allocate the room.
        if self.rows.shape.is_none() {
            return Ok(());
        }
        self.add(&mut [], tokens, false).map(|_| ())
    }

    fn draft(&mut self, sources: &mut [Resolved<'_>; 2], has_parents: bool) -> Result<Shown> {
        let tokens = sources[0].tokens();
        let shown = if tokens == 0 && self.current_seq_len() == 0 {
            self.rows.show_none(sources)?
        } else {
            let whole = has_parents || self.rows.drafts.is_branched();
            self.add(sources, self.rows.drafts.room(), whole)?
        };
        self.last = Some(LastAppend { shown: shown.clone(), tokens });
        Ok(shown)
    }

    fn draft_slot(&self) -> u32 {
        self.planner.draft_slot(self.rows.drafts.drafted())
    }

    fn end(&mut self, ending: &Ending) {
        self.planner.cut(ending.dropped);
        self.rows.end_draft(ending);
        let before = self.before.get(self.rows.drafts.depth()).cloned();
        self.before.truncate(self.rows.drafts.depth());
        if ending.kept > 0 {
            let runs = self.planner.reads(ending.kept, self.rows.drafts.is_branched());
            let shown = self.rows.show(runs, self.planner.state().current());
            let is_tree = self.rows.drafts.is_branched();
            self.last = shown.map(|shown| LastAppend { shown: shown.of_tree(is_tree), tokens: ending.kept });
        } else if let Some(last) = before {
            self.last = last;
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
