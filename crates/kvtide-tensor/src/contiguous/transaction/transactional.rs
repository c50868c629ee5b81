//! The cache's side of transactions: by number, without a borrow.

use std::sync::Arc;

use kvtide_core::TransactionId;

use super::{BeginOptions, Transaction};
use crate::base::error::Result;
use crate::base::memory::Budget;
use crate::tensor::source::Source;
use crate::tensor::view::View;

/// A cache that tokens can be drafted on, by the numbers of transactions.
pub trait Transactional {
    /// What an append shows, before anyone looks at it.
    type Shown: Into<Self::Seen>;
    /// What an append shows.
    type Seen;

    /// Opens a transaction on the cache, or on its open transaction `parent`. See [`KvTransaction::begin`](super::KvTransaction::begin).
    fn begin_draft(&mut self, parent: Option<TransactionId>, options: BeginOptions) -> Result<TransactionId>;

    /// See [`KvTransaction::append`](super::KvTransaction::append).
    fn append_draft<'a>(
        &mut self,
        id: TransactionId,
        k: impl Into<Source<'a>>,
        v: impl Into<Source<'a>>,
        parents: Option<&[i32]>,
    ) -> Result<Self::Shown>;

    /// See [`KvTransaction::commit`](super::KvTransaction::commit).
    fn commit_draft(&mut self, id: TransactionId, tokens: Option<u64>) -> Result<()>;

    /// See [`KvTransaction::commit_path`](super::KvTransaction::commit_path).
    fn commit_draft_path(&mut self, id: TransactionId, path: &[u32]) -> Result<()>;

    /// See [`KvTransaction::rollback`](super::KvTransaction::rollback).
    fn rollback_draft(&mut self, id: TransactionId) -> Result<()>;

    /// Rolls a transaction back, with its children, if it is still open. Never refused, also while someone reads the cache:
    /// no token is written.
    fn drop_draft(&mut self, id: TransactionId);

    /// See [`KvTransaction::drafted`](super::KvTransaction::drafted).
    fn drafted(&self, id: TransactionId) -> Result<u32>;

    /// See [`KvTransaction::tree_mask`](super::KvTransaction::tree_mask); its memory is taken from `budget`.
    fn draft_mask(&self, id: TransactionId, budget: &Arc<Budget>) -> Result<View>;

    /// See [`KvTransaction::tree_positions`](super::KvTransaction::tree_positions).
    fn draft_positions(&self, id: TransactionId) -> Result<Vec<u64>>;

    /// Opens a transaction, which is rolled back when it is dropped before it was committed.
    fn begin(&mut self, options: BeginOptions) -> Result<Transaction<'_, Self>>
    where
        Self: Sized,
    {
        let id = self.begin_draft(None, options)?;
        Ok(Transaction::new(self, id))
    }
}
