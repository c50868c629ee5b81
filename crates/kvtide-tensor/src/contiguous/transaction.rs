//! Transactions: tokens that leave no trace in a cache unless they are committed.
//!
//! ```text
//! let mut draft = cache.begin(..)?      the cache's tokens | draft
//! draft.append(&k, &v, None)?           the cache's tokens | a b c
//! draft.commit(Some(2))?                the cache's tokens, a b
//! ```
//!
//! [`KvTransaction`] is the interface that all kinds of transactions share. [`Transactional`] is the cache's side of it, by
//! transaction number, for callers that cannot hold a borrow of the cache, such as a language binding. [`Transaction`] is
//! the guard over it for Rust users: it rolls back when it is dropped. [`Drafting`] has the differences between the
//! contiguous caches: there, drafts are in one run directly after the cache's tokens, one after the other. So the end of a
//! transaction is bookkeeping, after the rows of a path have moved to the front of their draft, and the planner alone
//! decides how much room a draft takes.
//!
//! While a transaction is open, all other changes to the cache fail with `TRANSACTION_OPEN`; reads succeed, and include the
//! drafted tokens as if they had been appended. A call that fails leaves the transaction open and unchanged. Begin, commit
//! and rollback are O(1), plus O(tree) and the rows of a path; an append is O(new tokens) amortised.

use std::sync::Arc;

use kvtide_core::{Ending, TransactionId};

use crate::base::error::Result;
use crate::base::memory::Budget;
use crate::contiguous::Contiguous;
use crate::tensor::shown::Shown;
use crate::tensor::source::{Resolved, Source, check_pair, resolve_pair};
use crate::tensor::tree_mask::TreeMask;
use crate::tensor::view::{Kv, View};

/// Options of a transaction.
#[derive(Clone, Copy, Debug, Default)]
pub struct BeginOptions {
    /// Reserves room for this many tokens at once, so that appends up to that number neither allocate nor run out of room;
    /// more tokens may be drafted. If the cache has had no tokens and does not know its shape, the first tokens reserve the
    /// room. By default, room is taken as needed.
    pub max_tokens: Option<u32>,
}

/// A draft on top of a cache, or of another draft.
pub trait KvTransaction {
    /// The result of an append.
    type Seen;
    /// A transaction on top of this one.
    type Child<'a>: KvTransaction<Seen = Self::Seen>
    where
        Self: 'a;

    /// Appends tokens: a chain, or nodes of a draft tree with these parents, which are indices of tokens drafted here,
    /// counted from 0; -1 is the last token before the draft. Returns the same as the cache's own append, with one
    /// exception: once parents were given, a window returns everything that it keeps, in the order of the columns of
    /// [`tree_mask`](Self::tree_mask).
    fn append<'a>(
        &mut self,
        k: impl Into<Source<'a>>,
        v: impl Into<Source<'a>>,
        parents: Option<&[i32]>,
    ) -> Result<Self::Seen>;

    /// Keeps the first `tokens` drafted tokens (all by default), drops the rest, and ends the transaction. The tokens of a
    /// child become its parent's.
    fn commit(&mut self, tokens: Option<u64>) -> Result<()>;

    /// Keeps the nodes of `path`, each the child of the one before, in order directly after the tokens before the draft;
    /// drops the rest, and ends the transaction. Fails with `INVALID_PATH` if it is not a path.
    fn commit_path(&mut self, path: &[u32]) -> Result<()>;

    /// Drops the drafted tokens and ends the transaction: the cache is as it was before.
    fn rollback(&mut self) -> Result<()>;

    /// Opens a transaction on top of this one. Until the child has ended, only the length of this one can be read.
    fn begin(&mut self, options: BeginOptions) -> Result<Self::Child<'_>>;

    /// The number of drafted tokens.
    fn drafted(&self) -> Result<u32>;

    /// The attention mask of the draft, `[n, before + n]`: 0 where a token attends, -inf elsewhere.
    fn tree_mask(&self) -> Result<View>;

    /// The positions of the drafted tokens: the position of the first one plus their depth.
    fn tree_positions(&self) -> Result<Vec<u64>>;
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
    /// The cache, including the drafted tokens.
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

/// A cache with transactions that are identified by numbers.
pub trait Transactional {
    /// The result of an append, without views.
    type Shown: Into<Self::Seen>;
    /// The result of an append, as views.
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

    /// Rolls a transaction and its children back, if it is still open. Always succeeds, even while a background call reads
    /// the cache, because no token is written.
    fn drop_draft(&mut self, id: TransactionId);

    /// See [`KvTransaction::drafted`](KvTransaction::drafted).
    fn drafted(&self, id: TransactionId) -> Result<u32>;

    /// See [`KvTransaction::tree_mask`](KvTransaction::tree_mask); the memory is taken from `budget`.
    fn draft_mask(&self, id: TransactionId, budget: &Arc<Budget>) -> Result<View>;

    /// See [`KvTransaction::tree_positions`](KvTransaction::tree_positions).
    fn draft_positions(&self, id: TransactionId) -> Result<Vec<u64>>;

    /// Opens a transaction, which is rolled back if it is dropped before it is committed.
    fn begin(&mut self, options: BeginOptions) -> Result<Transaction<'_, Self>>
    where
        Self: Sized,
    {
        let id = self.begin_draft(None, options)?;
        Ok(Transaction { cache: self, id })
    }
}

/// A contiguous cache with drafts after its tokens. The arguments of its methods have been checked; a method that fails
/// changes nothing.
pub(crate) trait Drafting {
    /// Its rows, and the open transactions.
    fn rows(&self) -> &Contiguous;

    /// Its rows, for changes.
    fn rows_mut(&mut self) -> &mut Contiguous;

    /// Saves state other than tokens that a rollback restores. Called directly before a transaction is opened, which cannot
    /// fail.
    fn keep_before(&mut self) -> Result<()> {
        Ok(())
    }

    /// Reserves room for this many tokens after the existing ones.
    fn make_room(&mut self, tokens: u32) -> Result<()>;

    /// Appends tokens to the innermost draft.
    fn draft(&mut self, sources: &mut [Resolved<'_>; 2], has_parents: bool) -> Result<Shown>;

    /// The slot of the outermost draft's first token.
    fn draft_slot(&self) -> u32;

    /// Reserves memory for the bookkeeping at the end of a transaction.
    fn reserve_end(&mut self, _ending: &Ending) -> Result<()> {
        Ok(())
    }

    /// Ends a transaction whose kept tokens are at the front of its draft.
    fn end(&mut self, ending: &Ending);

    /// The tree of all drafts, and of the tentative tokens before them.
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
        self.rows_mut().reserve_draft()?;
        self.keep_before()?;
        Ok(self.rows_mut().begin_draft(room))
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
        let mut sources = resolve_pair(&k.into(), &v.into())?;
        check_pair(&sources, self.rows().shape.as_ref())?;
        let tokens = sources[0].tokens();
        self.rows_mut().drafts.check_append(id, tokens, parents)?;
        let shown = self.draft(&mut sources, parents.is_some())?;
        self.rows_mut().drafts.append(tokens, parents);
        Ok(shown)
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
        // These slots are after every mark of a `RollbackCache`, and its append has already logged them.
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
