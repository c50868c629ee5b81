//! The cache's side of transactions, by number and without a borrow; and the guard that borrows the cache.

use std::sync::Arc;

use kvtide_core::TransactionId;

use super::{BeginOptions, KvTransaction};
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

    /// Opens a transaction on the cache, or on its open transaction `parent`. See [`KvTransaction::begin`](KvTransaction::begin).
    fn begin_draft(&mut self, parent: Option<TransactionId>, options: BeginOptions) -> Result<TransactionId>;

    /// See [`KvTransaction::append`](KvTransaction::append).
    fn append_draft<'a>(
        &mut self,
        id: TransactionId,
        k: impl Into<Source<'a>>,
        v: impl Into<Source<'a>>,
        parents: Option<&[i32]>,
    ) -> Result<Self::Shown>;

    /// See [`KvTransaction::commit`](KvTransaction::commit).
    fn commit_draft(&mut self, id: TransactionId, tokens: Option<u64>) -> Result<()>;

    /// See [`KvTransaction::commit_path`](KvTransaction::commit_path).
    fn commit_draft_path(&mut self, id: TransactionId, path: &[u32]) -> Result<()>;

    /// See [`KvTransaction::rollback`](KvTransaction::rollback).
    fn rollback_draft(&mut self, id: TransactionId) -> Result<()>;

    /// Rolls a transaction back, with its children, if it is still open. Never refused, also while someone reads the cache:
    /// no token is written.
    fn drop_draft(&mut self, id: TransactionId);

    /// See [`KvTransaction::drafted`](KvTransaction::drafted).
    fn drafted(&self, id: TransactionId) -> Result<u32>;

    /// See [`KvTransaction::tree_mask`](KvTransaction::tree_mask); its memory is taken from `budget`.
    fn draft_mask(&self, id: TransactionId, budget: &Arc<Budget>) -> Result<View>;

    /// See [`KvTransaction::tree_positions`](KvTransaction::tree_positions).
    fn draft_positions(&self, id: TransactionId) -> Result<Vec<u64>>;

    /// Opens a transaction, which is rolled back when it is dropped before it was committed.
    fn begin(&mut self, options: BeginOptions) -> Result<Transaction<'_, Self>>
    where
        Self: Sized,
    {
        let id = self.begin_draft(None, options)?;
        Ok(Transaction { cache: self, id })
    }
}

/// An open transaction of a cache, rolled back when it is dropped.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use kvtide_tensor::{KvTransaction, RotatingCacheOptions, RotatingKvCache, Transactional};
///
/// let mut cache = RotatingKvCache::new(RotatingCacheOptions { max_seq_len: 4, ..Default::default() })?;
/// let tokens = |from: f32, to: f32| Tensor::arange(from, to, &Device::Cpu)?.reshape((1, 1, (), 1));
/// for token in 0..6 {
///     let token = tokens(token as f32, token as f32 + 1.)?;
///     cache.append(&token, &token)?;
/// }
/// {
///     let mut draft = cache.begin(Default::default())?;
///     draft.append(&tokens(6., 9.)?, &tokens(6., 9.)?, None)?;
///     draft.commit(Some(1))?;
/// }
/// assert_eq!(cache.current_data()?.unwrap().k.to_f32()?, [3., 4., 5., 6.]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "a transaction that is dropped is rolled back"]
pub struct Transaction<'c, C: Transactional> {
    cache: &'c mut C,
    id: TransactionId,
}

impl<C: Transactional> Transaction<'_, C> {
    /// The cache, with what is drafted.
    #[must_use]
    pub fn cache(&self) -> &C {
        self.cache
    }
}

impl<C: Transactional> KvTransaction for Transaction<'_, C> {
    type Seen = C::Seen;
    type Child<'a>
        = Transaction<'a, C>
    where
        Self: 'a;

    fn append<'a>(
        &mut self,
        k: impl Into<Source<'a>>,
        v: impl Into<Source<'a>>,
        parents: Option<&[i32]>,
    ) -> Result<C::Seen> {
        Ok(self.cache.append_draft(self.id, k, v, parents)?.into())
    }

    fn commit(&mut self, tokens: Option<u64>) -> Result<()> {
        self.cache.commit_draft(self.id, tokens)
    }

    fn commit_path(&mut self, path: &[u32]) -> Result<()> {
        self.cache.commit_draft_path(self.id, path)
    }

    fn rollback(&mut self) -> Result<()> {
        self.cache.rollback_draft(self.id)
    }

    fn begin(&mut self, options: BeginOptions) -> Result<Transaction<'_, C>> {
        let id = self.cache.begin_draft(Some(self.id), options)?;
        Ok(Transaction { cache: self.cache, id })
    }

    fn drafted(&self) -> Result<u32> {
        self.cache.drafted(self.id)
    }

    fn tree_mask(&self) -> Result<View> {
        self.cache.draft_mask(self.id, &Budget::process())
    }

    fn tree_positions(&self) -> Result<Vec<u64>> {
        self.cache.draft_positions(self.id)
    }
}

impl<C: Transactional> Drop for Transaction<'_, C> {
    fn drop(&mut self) {
        self.cache.drop_draft(self.id);
    }
}
