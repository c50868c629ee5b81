//! Transactions of the contiguous caches: what they share, over what differs.
//!
//! A draft lies in one run right behind the cache's tokens, one draft behind the other. So an end is bookkeeping, after the
//! rows of a path have moved to the front of their draft; and the planner decides alone what room a draft takes.

use std::sync::Arc;

use kvtide_core::{Ending, TransactionId};

use super::{BeginOptions, Transactional};
use crate::base::error::Result;
use crate::base::memory::Budget;
use crate::contiguous::Contiguous;
use crate::tensor::shown::Shown;
use crate::tensor::source::Source;
use crate::tensor::tree_mask::TreeMask;
use crate::tensor::view::{Kv, View};

/// A contiguous cache that drafts can lie behind. Arguments have been checked; what fails leaves everything as it was.
pub(crate) trait Drafting {
    /// Its rows, and the open transactions.
    fn rows(&self) -> &Contiguous;

    /// Its rows, to be changed.
    fn rows_mut(&mut self) -> &mut Contiguous;

    /// Keeps what a roll-back brings back besides the tokens. Called right before a transaction is opened, which cannot fail.
    fn keep_before(&mut self) -> Result<()> {
        Ok(())
    }

    /// Takes room for so many tokens behind those there are.
    fn make_room(&mut self, tokens: u32) -> Result<()>;

    /// Adds tokens to the innermost draft.
    fn draft(&mut self, id: TransactionId, k: &Source<'_>, v: &Source<'_>, parents: Option<&[i32]>) -> Result<Shown>;

    /// The slot of the outermost draft's first token.
    fn draft_slot(&self) -> u32;

    /// Makes room for the bookkeeping of an end.
    fn reserve_end(&mut self, _ending: &Ending) -> Result<()> {
        Ok(())
    }

    /// Ends a transaction whose kept tokens lie at the front of its draft.
    fn end(&mut self, ending: &Ending);

    /// The tree of all drafts, and of what is tentative before them.
    fn tree_mask(&self) -> Result<TreeMask>;
}

impl<C: Drafting> Transactional for C {
    type Shown = Shown;
    type Seen = Kv;

    fn begin_draft(&mut self, parent: Option<TransactionId>, options: BeginOptions) -> Result<TransactionId> {
        self.rows().check_change()?;
        self.rows_mut().drafts.check_begin(parent)?;
        let room = options.max_tokens.unwrap_or(0);
        if room > 0 {
            self.make_room(kvtide_core::count("maxTokens", room.into())?)?;
        }
        self.keep_before()?;
        Ok(self.rows_mut().drafts.begin(room))
    }

    fn append_draft<'a>(
        &mut self,
        id: TransactionId,
        k: impl Into<Source<'a>>,
        v: impl Into<Source<'a>>,
        parents: Option<&[i32]>,
    ) -> Result<Shown> {
        self.rows().check_change()?;
        self.rows().drafts.check(id)?;
        self.draft(id, &k.into(), &v.into(), parents)
    }

    fn commit_draft(&mut self, id: TransactionId, tokens: Option<u64>) -> Result<()> {
        self.rows().check_change()?;
        let ending = self.rows().drafts.plan_commit(id, tokens)?;
        self.reserve_end(&ending)?;
        self.end(&ending);
        Ok(())
    }

    fn commit_draft_path(&mut self, id: TransactionId, path: &[u32]) -> Result<()> {
        self.rows().check_change()?;
        let (ending, moves, written) = self.rows().drafts.plan_path(id, path, self.draft_slot())?;
        self.reserve_end(&ending)?;
        // Behind every mark of a `RollbackCache`, and its append has noted these positions already.
        self.rows_mut().move_rows(&moves, written)?;
        self.end(&ending);
        Ok(())
    }

    fn rollback_draft(&mut self, id: TransactionId) -> Result<()> {
        self.commit_draft(id, Some(0))
    }

    fn drop_draft(&mut self, id: TransactionId) {
        if let Some(ending) = self.rows().drafts.plan_drop(id) {
            self.end(&ending);
        }
    }

    fn drafted(&self, id: TransactionId) -> Result<u32> {
        self.rows().check()?;
        Ok(self.rows().drafts.len(id)?)
    }

    fn draft_mask(&self, id: TransactionId, budget: &Arc<Budget>) -> Result<View> {
        self.rows().check()?;
        let first = self.rows().drafts.first(id)? as usize;
        self.tree_mask()?.view(first, budget)
    }

    fn draft_positions(&self, id: TransactionId) -> Result<Vec<u64>> {
        self.rows().check()?;
        let first = self.rows().drafts.first(id)? as usize;
        Ok(self.tree_mask()?.positions(first))
    }
}
