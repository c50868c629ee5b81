//! Plans for a cache of committed tokens, and of tentative tokens behind them that can be rolled back.
//!
//! ```text
//! slots  0 ........ committed ........ total ...... slots
//!        [ committed | tentative (tree) | free      ]
//! ```
//!
//! Invariants: `committed <= total`; the tree has `total - committed` nodes. A [`Mark`] remembers a committed length
//! and uses no memory, so it becomes invalid once one of its tokens is overwritten. Marking, committing and rolling
//! back are O(1) (a commit is O(tentative)); an append is O(new tokens) amortised.

use crate::count::COUNT_MAX;
use crate::error::{Error, Result};
use crate::growable::{GrowablePlanner, GrowableState};
use crate::plan::{Plan, SlotMove, path_moves};
use crate::run::Run;
use crate::tree::Tree;
use crate::write_log::{Stamp, WriteLog};

/// A committed length to return to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    committed: u32,
    stamp: Stamp,
}

impl Mark {
    /// The committed length.
    #[must_use]
    pub fn committed(&self) -> u32 {
        self.committed
    }
}

/// The planner of `RollbackCache`.
#[derive(Clone, Debug)]
pub struct RollbackPlanner {
    tokens: GrowablePlanner,
    committed: u32,
    tree: Tree,
    /// Writes by position, across all growth: shows if a mark's tokens were overwritten.
    history: WriteLog,
}

impl RollbackPlanner {
    /// Returns an empty cache.
    pub fn new() -> Result<Self> {
        Ok(RollbackPlanner {
            tokens: GrowablePlanner::new(0, COUNT_MAX)?,
            committed: 0,
            tree: Tree::default(),
            history: WriteLog::default(),
        })
    }

    /// The slots of the tokens.
    #[must_use]
    pub fn state(&self) -> GrowableState {
        self.tokens.state()
    }

    /// Number of committed and tentative tokens.
    #[must_use]
    pub fn total(&self) -> u32 {
        self.tokens.state().len()
    }

    /// Number of committed tokens.
    #[must_use]
    pub fn committed(&self) -> u32 {
        self.committed
    }

    /// The tree of the tentative tokens.
    #[must_use]
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Plans an append of `tokens` tentative tokens: a chain, or nodes with these parents.
    pub fn plan_append(&self, tokens: u32, parents: Option<&[i32]>) -> Result<Plan<GrowableState>> {
        self.tree.check_tokens(0, tokens, parents)?;
        self.tokens.plan_append(tokens)
    }

    /// Reserves memory for the bookkeeping of `tokens` more tokens. Callers call it before they carry a plan out.
    pub fn reserve(&mut self, tokens: u32) -> Result<()> {
        self.tree.reserve(tokens)
    }

    /// Records an append that was carried out.
    pub fn commit_append(&mut self, plan: &Plan<GrowableState>, parents: Option<&[i32]>) -> Result<()> {
        let before = self.total();
        let added = plan.next.len() - before;
        match parents {
            Some(parents) => self.tree.extend(parents)?,
            None => self.tree.extend_chain(added),
        }
        self.history.record(Run::new(before, added));
        self.tokens.commit(plan.next);
        Ok(())
    }

    /// Commits the tokens before `len`. Later tokens stay tentative and keep their parents.
    pub fn commit(&mut self, len: u64) -> Result<()> {
        let total = self.total();
        match u32::try_from(len) {
            Ok(len) if (self.committed..=total).contains(&len) => {
                self.tree.commit((len - self.committed) as usize);
                self.committed = len;
                Ok(())
            }
            _ => Err(Error::argument("len", len, format!("from {} (committed) to {total} (total)", self.committed))),
        }
    }

    /// Makes the first `committed` of the present tokens committed, and the others the nodes of `tree`.
    pub fn resume(&mut self, committed: u32, tree: Tree) {
        assert_eq!(u64::from(committed) + tree.len() as u64, u64::from(self.total()), "a parent for each other token");
        (self.committed, self.tree) = (committed, tree);
    }

    /// Returns a mark on the committed length.
    #[must_use]
    pub fn mark(&self) -> Mark {
        Mark { committed: self.committed, stamp: self.history.stamp() }
    }

    /// Rolls back to a mark: only its tokens stay, and all of them are committed.
    pub fn rollback(&mut self, mark: &Mark) -> Result<()> {
        let refused = |reason| Err(Error::SnapshotInvalid { reason });
        if mark.committed > self.committed {
            return refused("it is ahead of the committed tokens");
        }
        if self.history.written_since(mark.stamp, Run::new(0, mark.committed)) {
            return refused("its tokens were overwritten after a roll-back to an older mark");
        }
        self.tokens.truncate(mark.committed.into())?;
        self.committed = mark.committed;
        self.tree.clear();
        Ok(())
    }

    /// Plans to keep the accepted path of the draft tree and drop the other nodes. Returns the moves, and the slots
    /// they write.
    pub fn plan_path(&self, path: &[u32]) -> Result<(Vec<SlotMove>, Run)> {
        self.tree.check_path(path)?;
        Ok(path_moves(self.committed, path))
    }

    /// Plans an append of `tokens` drafted tokens behind all others, with room for `room` tokens.
    pub fn plan_draft(&self, tokens: u32, room: u32) -> Result<Plan<GrowableState>> {
        self.tokens.plan_append_with_room(tokens, room)
    }

    /// Records drafted tokens whose plan was carried out.
    pub fn commit_draft(&mut self, next: GrowableState) {
        self.history.record(Run::new(self.total(), next.len() - self.total()));
        self.tokens.commit(next);
    }

    /// Drops the last `tokens` drafted tokens.
    pub fn cut(&mut self, tokens: u32) {
        self.tokens.cut(tokens);
    }

    /// Keeps the last `tokens` tokens, which were drafted as a chain or with these parents. They become committed if no
    /// tentative token precedes them, else tentative.
    pub fn keep_draft(&mut self, tokens: u32, parents: Option<&[i32]>) {
        let tentative = self.tree.len();
        match parents {
            _ if tentative == 0 => self.committed += tokens,
            Some(parents) => self.tree.extend_from(tentative, parents),
            None => self.tree.extend_chain(tokens),
        }
    }

    /// Records an accepted path of `accepted` tokens whose moves, to the slots `written`, were carried out.
    pub fn commit_path(&mut self, accepted: u32, written: Run) -> Result<()> {
        self.history.record(written);
        self.committed += accepted;
        self.tree.clear();
        self.tokens.truncate(self.committed.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::Code;

    fn append(planner: &mut RollbackPlanner, tokens: u32) {
        let plan = planner.plan_append(tokens, None).unwrap();
        planner.commit_append(&plan, None).unwrap();
    }

    #[test]
    fn append_commit_and_roll_back() {
        let mut planner = RollbackPlanner::new().unwrap();
        append(&mut planner, 3);
        assert_eq!((planner.total(), planner.committed()), (3, 0));
        planner.commit(3).unwrap();
        let mark = planner.mark();
        append(&mut planner, 5);
        assert_eq!((planner.total(), planner.committed()), (8, 3));
        planner.rollback(&mark).unwrap();
        assert_eq!((planner.total(), planner.committed()), (3, 3));
    }

    #[test]
    fn a_mark_ahead_of_the_committed_tokens_is_refused() {
        let mut planner = RollbackPlanner::new().unwrap();
        append(&mut planner, 2);
        planner.commit(2).unwrap();
        let mark = Mark { committed: 99, ..planner.mark() };
        assert_eq!(planner.rollback(&mark).unwrap_err().code(), Code::SnapshotInvalid);
        assert_eq!((planner.total(), planner.committed()), (2, 2));
    }

    #[test]
    fn a_mark_of_a_branch_that_was_overwritten_is_refused() {
        let mut planner = RollbackPlanner::new().unwrap();
        append(&mut planner, 2);
        planner.commit(2).unwrap();
        let old = planner.mark();
        append(&mut planner, 4);
        planner.commit(6).unwrap();
        let branch = planner.mark();
        planner.rollback(&old).unwrap();
        append(&mut planner, 4);
        planner.commit(6).unwrap();
        assert_eq!(planner.rollback(&branch).unwrap_err().code(), Code::SnapshotInvalid);
        assert!(planner.rollback(&old).is_ok());
    }

    #[test]
    fn a_commit_is_absolute_and_within_the_tokens() {
        let mut planner = RollbackPlanner::new().unwrap();
        append(&mut planner, 5);
        planner.commit(3).unwrap();
        assert_eq!(planner.commit(2).unwrap_err().code(), Code::InvalidArgument);
        assert_eq!(planner.commit(6).unwrap_err().code(), Code::InvalidArgument);
        assert_eq!((planner.total(), planner.committed()), (5, 3));
    }

    #[test]
    fn a_path_moves_only_the_rows_that_change_their_place() {
        let mut planner = RollbackPlanner::new().unwrap();
        append(&mut planner, 2);
        planner.commit(2).unwrap();
        let parents = [-1, -1, 0, 2, 2];
        let plan = planner.plan_append(5, Some(&parents)).unwrap();
        planner.commit_append(&plan, Some(&parents)).unwrap();
        let (moves, written) = planner.plan_path(&[0, 2, 3]).unwrap();
        assert_eq!(moves, [SlotMove { source: Run::new(4, 2), target: 3 }]);
        assert_eq!(written, Run::new(3, 2));
        planner.commit_path(3, written).unwrap();
        assert_eq!((planner.total(), planner.committed()), (5, 5));
    }
}
