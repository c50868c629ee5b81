//! Transactions on a sequence: drafted tokens leave no trace in any layer unless they are committed.
//!
//! A transaction has the same number in all groups. Opening is checked in all groups before the first one opens it, and the
//! end is planned in all groups before the first one ends it. O(groups), plus the cost of each group.

use std::sync::Arc;

use kvtide_core::TransactionId;
use kvtide_core::paged::Keep;

use super::append::Tokens;
use super::cache::PagedKvCache;
use crate::base::error::{Error, Result};
use crate::base::memory::Budget;
use crate::contiguous::transaction::{BeginOptions, Transactional};
use crate::tensor::source::Source;
use crate::tensor::view::View;

impl PagedKvCache {
    /// Opens a transaction on a sequence, or on its innermost transaction: tokens that are appended from then on can be
    /// rolled back.
    pub fn begin(
        &mut self,
        sequence: u64,
        parent: Option<TransactionId>,
        options: BeginOptions,
    ) -> Result<TransactionId> {
        self.check_all(|group| {
            group.check_begin(sequence, parent)?;
            group.check_reserve(sequence, options)
        })?;
        // It is opened in every group before the first one reserves blocks, so that the numbers stay the same.
        let id = self.each(|group| group.begin(sequence, parent))?;
        match self.each(|group| group.reserve_draft(sequence, options)) {
            Ok(()) => Ok(id),
            Err(refusal) => {
                self.rollback(sequence, id);
                Err(refusal)
            }
        }
    }

    /// The innermost open transaction of a sequence.
    pub fn innermost(&self, sequence: u64) -> Result<Option<TransactionId>> {
        Ok(self.first().planner().innermost(sequence)?)
    }

    /// The number of tokens in a transaction.
    pub fn drafted(&mut self, sequence: u64, id: TransactionId) -> Result<u32> {
        self.collect()?;
        Ok(self.first().planner().drafted(sequence, id)?)
    }

    /// Fails if the transaction has ended, or if another transaction or a step is open on it.
    pub fn check_draft(&mut self, sequence: u64, id: TransactionId) -> Result<()> {
        self.check_all(|group| group.check_end(sequence, id))
    }

    /// Keeps the first `tokens` tokens of a transaction (all by default), drops the rest, and ends it.
    pub fn commit(&mut self, sequence: u64, id: TransactionId, tokens: Option<u64>) -> Result<()> {
        self.end(sequence, id, tokens.map_or(Keep::All, Keep::First))
    }

    /// Keeps the nodes of a path, each the child of the one before, drops the rest, and ends the transaction.
    pub fn commit_path(&mut self, sequence: u64, id: TransactionId, path: &[u32]) -> Result<()> {
        self.end(sequence, id, Keep::Path(path))
    }

    /// Rolls a transaction back, with the transactions on top of it and an open step of the sequence; does nothing if it has
    /// ended. Always succeeds.
    pub fn rollback(&mut self, sequence: u64, id: TransactionId) {
        let _ = self.collect();
        self.groups.iter_mut().for_each(|group| group.drop_draft(sequence, id));
    }

    /// The attention mask of a transaction's tokens in a layer: `[drafted, before + drafted]`, 0 where a token attends and
    /// -infinity elsewhere; a window counts positions. Fails while a transaction or a step is open on it. Its memory is
    /// taken from `budget`.
    pub fn draft_mask(&mut self, sequence: u64, id: TransactionId, layer: u32, budget: &Arc<Budget>) -> Result<View> {
        let place = self.place(layer)?;
        self.collect()?;
        self.group(place).draft_mask(sequence, id, budget)
    }

    /// The positions of a transaction's tokens, the same in all layers. Fails while a transaction or a step is open on it.
    pub fn draft_positions(&mut self, sequence: u64, id: TransactionId) -> Result<Vec<u64>> {
        self.collect()?;
        self.first().draft_positions(sequence, id)
    }

    /// Borrows a sequence, to open a transaction on it.
    pub fn sequence(&mut self, id: u64) -> Result<PagedSequence<'_>> {
        self.collect()?;
        self.first().planner().gap(id)?;
        Ok(PagedSequence { cache: self, id })
    }

    /// Ends a draft in all groups or, if it fails, in none.
    fn end(&mut self, sequence: u64, id: TransactionId, keep: Keep<'_>) -> Result<()> {
        let planned = self.ask(|group| group.plan_end(sequence, id, keep))?;
        self.groups.iter_mut().zip(planned).try_for_each(|(group, planned)| group.carry_out_end(planned))
    }
}

/// A borrowed sequence of a cache, on which transactions can be opened.
///
/// ```
/// use kvtide_tensor::{DType, HostTensor, KvTransaction, PagedKvCache, PagedKvCacheOptions, Transactional};
///
/// let mut cache = PagedKvCache::new(PagedKvCacheOptions { capacity: 4, head_dim: 2, ..Default::default() })?;
/// let id = cache.create_sequence()?;
/// let zeros = [0; 3 * 2 * 4];
/// let tokens = || HostTensor::new("k", &zeros, DType::F32, &[1, 1, 3, 2]);
/// let mut sequence = cache.sequence(id)?;
/// let mut draft = sequence.begin(Default::default())?;
/// draft.append(tokens()?, tokens()?, None)?;
/// draft.commit(Some(2))?;
/// drop(draft);
/// assert_eq!(cache.sequence_length(id), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct PagedSequence<'c> {
    cache: &'c mut PagedKvCache,
    id: u64,
}

impl PagedSequence<'_> {
    /// Its number.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Its cache.
    #[must_use]
    pub fn cache(&mut self) -> &mut PagedKvCache {
        self.cache
    }

    /// Appends tokens of all layers, like [`PagedKvCache::append_to`].
    pub fn append(&mut self, tokens: Tokens<'_>) -> Result<()> {
        self.cache.append_to(self.id, None, tokens)
    }
}

impl Transactional for PagedSequence<'_> {
    type Shown = ();
    type Seen = ();

    fn begin_draft(&mut self, parent: Option<TransactionId>, options: BeginOptions) -> Result<TransactionId> {
        self.cache.begin(self.id, parent, options)
    }

    /// K and V `[layers, kvHeads, tokens, headDim]`.
    fn append_draft<'a>(
        &mut self,
        id: TransactionId,
        k: impl Into<Source<'a>>,
        v: impl Into<Source<'a>>,
        parents: Option<&[i32]>,
    ) -> Result<()> {
        self.cache.append_to(self.id, Some(id), Tokens { parents, ..Tokens::of_all(k, v) })
    }

    fn commit_draft(&mut self, id: TransactionId, tokens: Option<u64>) -> Result<()> {
        self.cache.commit(self.id, id, tokens)
    }

    fn commit_draft_path(&mut self, id: TransactionId, path: &[u32]) -> Result<()> {
        self.cache.commit_path(self.id, id, path)
    }

    fn rollback_draft(&mut self, id: TransactionId) -> Result<()> {
        self.commit_draft(id, Some(0))
    }

    fn drop_draft(&mut self, id: TransactionId) {
        self.cache.rollback(self.id, id);
    }

    fn drafted(&self, id: TransactionId) -> Result<u32> {
        self.cache.first().check()?;
        Ok(self.cache.first().planner().drafted(self.id, id)?)
    }

    /// The mask of the first layer with keys and values; fails if there is none.
    fn draft_mask(&self, id: TransactionId, budget: &Arc<Budget>) -> Result<View> {
        match self.cache.groups_of_tokens().next() {
            Some(group) => group.draft_mask(self.id, id, budget),
            None => Err(Error::argument("layer", "a state", "a layer with keys and values")),
        }
    }

    fn draft_positions(&self, id: TransactionId) -> Result<Vec<u64>> {
        self.cache.first().draft_positions(self.id, id)
    }
}
