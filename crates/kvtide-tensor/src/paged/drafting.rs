//! Transactions on a sequence: what is drafted leaves no trace in its blocks unless it is committed.

use std::sync::Arc;

use kvtide_core::paged::{Append, Keep, Writer};
use kvtide_core::{TransactionId, Tree, counted};

use crate::error::{Error, Result};
use crate::memory::Budget;
use crate::paged_kv_cache::PagedKvCache;
use crate::source::Source;
use crate::transaction::{BeginOptions, Transactional};
use crate::tree_mask::{Sight, TreeMask};
use crate::view::View;

/// One sequence of a cache, borrowed: what transactions are opened on.
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

    /// Appends tokens of all layers: K and V `[layers, kvHeads, tokens, headDim]`. `tokens` are their ids, where they are known:
    /// full blocks of known tokens can be found by others from then on.
    pub fn append<'a>(
        &mut self,
        k: impl Into<Source<'a>>,
        v: impl Into<Source<'a>>,
        tokens: Option<&[u32]>,
    ) -> Result<()> {
        self.cache.append_all(self.id, Writer::Direct, [k.into(), v.into()], None, tokens)
    }

    /// As [`Transactional::append_draft`], of tokens whose ids are known: they can be found once they are committed.
    pub fn append_draft_known<'a>(
        &mut self,
        id: TransactionId,
        k: impl Into<Source<'a>>,
        v: impl Into<Source<'a>>,
        parents: Option<&[i32]>,
        tokens: Option<&[u32]>,
    ) -> Result<()> {
        self.cache.append_all(self.id, Writer::Draft(id), [k.into(), v.into()], parents, tokens)
    }
}

impl PagedKvCache {
    /// A sequence, to open a transaction on.
    pub fn sequence(&mut self, id: u64) -> Result<PagedSequence<'_>> {
        self.collect()?;
        self.planner.gap(id)?;
        Ok(PagedSequence { cache: self, id })
    }

    /// Refuses what committing its tokens would refuse.
    pub(crate) fn check_end(&self, sequence: u64, id: TransactionId) -> Result<()> {
        self.planner.plan_end(sequence, id, Keep::All).map(drop).map_err(Into::into)
    }

    /// Refuses what [`PagedKvCache::reserve_draft`] would refuse, but for memory of the bookkeeping.
    pub(crate) fn check_reserve(&self, sequence: u64, options: BeginOptions) -> Result<()> {
        match self.draft_end(sequence, options)? {
            Some(tokens) => Ok(self.planner.check_room(sequence, tokens)?),
            None => Ok(()),
        }
    }

    /// Takes the blocks that a transaction which was opened asks for.
    pub(crate) fn reserve_draft(&mut self, sequence: u64, options: BeginOptions) -> Result<()> {
        match self.draft_end(sequence, options)? {
            Some(tokens) => Ok(self.planner.reserve_draft(sequence, tokens)?),
            None => Ok(()),
        }
    }

    /// The tokens of a sequence that there is to be room for.
    fn draft_end(&self, sequence: u64, options: BeginOptions) -> Result<Option<u32>> {
        let wanted = |tokens: u32| u64::from(self.sequence_length(sequence)) + u64::from(tokens);
        Ok(options.max_tokens.map(|tokens| kvtide_core::count("maxTokens", wanted(tokens))).transpose()?)
    }

    fn end_draft(&mut self, sequence: u64, id: TransactionId, keep: Keep<'_>) -> Result<()> {
        let planned = self.plan_end(sequence, id, keep)?;
        self.carry_out_end(planned)
    }
}

impl Transactional for PagedSequence<'_> {
    type Shown = ();
    type Seen = ();

    fn begin_draft(&mut self, parent: Option<TransactionId>, options: BeginOptions) -> Result<TransactionId> {
        self.cache.change()?;
        let planner = &mut self.cache.planner;
        let Some(tokens) = options.max_tokens else { return Ok(planner.begin(self.id, parent)?) };
        planner.check_begin(self.id, parent)?;
        let wanted = u64::from(planner.sequence_length(self.id)) + u64::from(tokens);
        Ok(planner.begin_with(self.id, parent, kvtide_core::count("maxTokens", wanted)?)?)
    }

    /// K and V `[layers, kvHeads, tokens, headDim]`.
    fn append_draft<'a>(
        &mut self,
        id: TransactionId,
        k: impl Into<Source<'a>>,
        v: impl Into<Source<'a>>,
        parents: Option<&[i32]>,
    ) -> Result<()> {
        self.append_draft_known(id, k, v, parents, None)
    }

    fn commit_draft(&mut self, id: TransactionId, tokens: Option<u64>) -> Result<()> {
        self.cache.end_draft(self.id, id, tokens.map_or(Keep::All, Keep::First))
    }

    fn commit_draft_path(&mut self, id: TransactionId, path: &[u32]) -> Result<()> {
        self.cache.end_draft(self.id, id, Keep::Path(path))
    }

    fn rollback_draft(&mut self, id: TransactionId) -> Result<()> {
        self.commit_draft(id, Some(0))
    }

    fn drop_draft(&mut self, id: TransactionId) {
        // A sequence that was dropped took its transactions along, and a cache without memory for this says so elsewhere.
        if self.cache.planner.undo(self.id, id).is_err() && self.cache.planner.gap(self.id).is_ok() {
            self.cache.poisoned = true;
        }
    }

    fn drafted(&self, id: TransactionId) -> Result<u32> {
        self.cache.check()?;
        Ok(self.cache.planner.drafted(self.id, id)?)
    }

    fn draft_mask(&self, id: TransactionId, budget: &Arc<Budget>) -> Result<View> {
        let (mask, first) = self.mask(id)?;
        mask.view(first, budget)
    }

    fn draft_positions(&self, id: TransactionId) -> Result<Vec<u64>> {
        let (mask, first) = self.mask(id)?;
        Ok(mask.positions(first))
    }
}

impl PagedSequence<'_> {
    /// The mask of all drafts, and the first node of one of them. Refused while a step brings more nodes.
    fn mask(&self, id: TransactionId) -> Result<(TreeMask, usize)> {
        self.cache.check()?;
        let planner = &self.cache.planner;
        planner.check_resting(self.id)?;
        let first = planner.draft_first(self.id, id)? as usize;
        let tree = Tree::joined([planner.draft_tree(self.id)?])?;
        let (committed, gap) = (planner.committed_length(self.id).into(), planner.gap(self.id)?);
        let before = match gap.is_empty() {
            true => [0..committed, 0..0],
            false => [0..gap.start.into(), gap.end.into()..committed],
        };
        let window = planner.window().map(Sight::from);
        Ok((TreeMask { before, window, tree, tentative: 0 }, first))
    }
}

impl PagedKvCache {
    /// Appends tokens of all layers to one sequence.
    fn append_all(
        &mut self,
        sequence: u64,
        writer: Writer,
        sources: [Source<'_>; 2],
        parents: Option<&[i32]>,
        tokens: Option<&[u32]>,
    ) -> Result<()> {
        self.change()?;
        let rows = self.rows(sources, Some(self.planner.num_layers() as usize))?;
        if let Some(parents) = parents
            && parents.len() != rows[0].tokens as usize
        {
            let expected = format!("one for each of {}", counted(rows[0].tokens.into(), "token"));
            return Err(Error::argument("parents", counted(parents.len() as u64, "parent"), expected));
        }
        let offsets = [0, rows[0].tokens];
        let append = Append { sequences: &[sequence], offsets: Some(&offsets), parents, writer };
        self.append_rows(&append, &rows, tokens)
    }
}
