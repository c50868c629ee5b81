//! K and V of one attention layer, in a growing buffer.
//!
//! The buffer is `[2 (k, v), batch, kvHeads, capacity, headDim]`. An append, also of a draft, is O(new tokens), plus a copy
//! of the existing rows when the buffer doubles. Truncate, snapshot and restore are O(1).

use std::sync::Arc;

use candle_core::Tensor;
use kvtide_core::{Ending, GrowablePlanner, GrowableState, Runs, Tree};

use crate::base::dims::Dims;
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::memory::Budget;
use crate::base::stats::Stats;
use crate::contiguous::options::KvCacheOptions;
use crate::contiguous::transaction::Drafting;
use crate::contiguous::{Contiguous, HeldRows};
use crate::device::check_kernels;
use crate::tensor::buffer::RowShape;
use crate::tensor::shown::Shown;
use crate::tensor::source::{Resolved, SEQUENCE, Source, check_pair, resolve_pair};
use crate::tensor::tree_mask::TreeMask;
use crate::tensor::view::Kv;

/// A growing cache of K and V.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use kvtide_tensor::{KvCache, KvCacheOptions};
///
/// let mut cache = KvCache::new(KvCacheOptions { num_kv_heads: 2, head_dim: 4, max_seq_len: 8, ..Default::default() })?;
/// let k = Tensor::arange(0f32, 24., &Device::Cpu)?.reshape((1, 2, 3, 4))?;
/// let seen = cache.update(&k, &k)?;
/// assert_eq!(seen.k.shape(), [1, 2, 3, 4]);
/// assert_eq!(seen.k.to_f32()?, k.flatten_all()?.to_vec1::<f32>()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct KvCache {
    planner: GrowablePlanner,
    rows: Contiguous,
    dtype: DType,
}

/// The content of a [`KvCache`] at one moment. Immutable.
#[derive(Clone, Debug)]
pub struct KvSnapshot {
    state: GrowableState,
    held: HeldRows,
}

impl KvSnapshot {
    /// The number of its tokens.
    #[must_use]
    pub fn seq_len(&self) -> u32 {
        self.state.len()
    }
}

impl KvCache {
    /// An empty cache with its first buffer allocated.
    pub fn new(options: KvCacheOptions) -> Result<Self> {
        let KvCacheOptions { batch_size, num_kv_heads, head_dim, dtype, .. } = options;
        for (argument, value) in [("batchSize", batch_size), ("numKvHeads", num_kv_heads), ("headDim", head_dim)] {
            kvtide_core::count_positive(argument, value.into())?;
        }
        check_kernels(&options.device)?;
        let initial = if options.stable_addresses { options.max_seq_len } else { options.initial_capacity };
        let planner = GrowablePlanner::new(initial, options.max_seq_len)?;
        let dims = Dims::new("shape", &[batch_size as usize, num_kv_heads as usize, 1, head_dim as usize])?;
        let shape = RowShape { parts: 2, dims, axis: SEQUENCE, dtype };
        let mut rows =
            Contiguous::new(Budget::within(&options.device, options.budget.as_ref(), options.memory_limit_bytes));
        rows.reserve(shape, planner.state().slots())?;
        Ok(KvCache { planner, rows, dtype })
    }

    /// The number of its tokens.
    #[must_use]
    pub fn seq_len(&self) -> u32 {
        self.planner.state().len()
    }

    /// The number of slots in the buffer.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.planner.state().slots()
    }

    /// The largest number of tokens.
    #[must_use]
    pub fn max_seq_len(&self) -> u32 {
        self.planner.max()
    }

    /// True if it has no tokens.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.seq_len() == 0
    }

    /// Its element type.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The batch size, the number of KV heads, and the head dim.
    #[must_use]
    pub fn sizes(&self) -> [u32; 3] {
        let shape = self.rows.shape.as_ref().expect("a cache that was made with its sizes");
        [0, 1, 3].map(|axis| shape.dims[axis] as u32)
    }

    /// Fails while a transaction is open.
    pub fn check_undrafted(&self) -> Result<()> {
        self.rows.check_undrafted()
    }

    /// Appends tokens: `[batch, kv_heads, n, head_dim]` each. K and V are written in one operation.
    pub fn update<'a>(&mut self, k: impl Into<Source<'a>>, v: impl Into<Source<'a>>) -> Result<Kv> {
        Ok(self.update_shown(k, v)?.into_kv())
    }

    /// Like [`update`](Self::update), without making views.
    pub fn update_shown<'a>(&mut self, k: impl Into<Source<'a>>, v: impl Into<Source<'a>>) -> Result<Shown> {
        self.rows.check_undrafted()?;
        let mut sources = resolve_pair(&k.into(), &v.into())?;
        check_pair(&sources, self.rows.shape.as_ref())?;
        self.add(&mut sources, 0)
    }

    /// Views of its tokens.
    pub fn get_kv(&self) -> Result<Kv> {
        Ok(self.get_kv_shown()?.into_kv())
    }

    /// Like [`get_kv`](Self::get_kv), without making views.
    pub fn get_kv_shown(&self) -> Result<Shown> {
        self.rows.check()?;
        let state = self.planner.state();
        if state.is_empty() {
            return Err(kvtide_core::Error::CacheEmpty { operation: "getKv" }.into());
        }
        self.rows.show(state.live(), state.len().into()).ok_or(Error::Disposed { object: "KvCache" })
    }

    /// Views of the whole buffers `[batch, kv_heads, capacity, head_dim]`, which show later writes and are never stale.
    ///
    /// Their address stays the same as long as the capacity does, and the cache is not restored.
    pub fn raw(&self) -> Result<Kv> {
        Ok(self.raw_shown()?.into_kv())
    }

    /// Like [`raw`](Self::raw), without making views.
    pub fn raw_shown(&self) -> Result<Shown> {
        self.rows.check()?;
        self.rows.show_all().ok_or(Error::Disposed { object: "KvCache" })
    }

    /// The whole buffers as candle tensors, for a kernel that writes rows itself and then calls
    /// [`increment_seq_len`](Self::increment_seq_len).
    ///
    /// Such writes bypass copy on write: a snapshot that shows these slots (taken before a truncate) loses its content.
    pub fn raw_tensors(&self) -> Result<(Tensor, Tensor)> {
        let raw = self.raw()?;
        Ok((raw.k.tensor()?, raw.v.tensor()?))
    }

    /// Counts tokens that a kernel wrote itself, after the last token.
    pub fn increment_seq_len(&mut self, tokens: u32) -> Result<()> {
        self.rows.check_undrafted()?;
        let written = self.planner.increment(tokens)?;
        self.rows.record(written);
        Ok(())
    }

    /// Drops all tokens after the first `len`.
    pub fn truncate(&mut self, len: u64) -> Result<()> {
        self.rows.check_undrafted()?;
        Ok(self.planner.truncate(len)?)
    }

    /// Drops all tokens; the memory stays allocated.
    pub fn reset(&mut self) -> Result<()> {
        self.truncate(0)
    }

    /// A snapshot of its current content, which later changes do not affect.
    pub fn snapshot(&self) -> Result<KvSnapshot> {
        self.rows.check()?;
        let state = self.planner.state();
        Ok(KvSnapshot { state, held: self.rows.hold(state.live()) })
    }

    /// Restores the content of a snapshot: O(1) for a snapshot of this cache, a copy for one of another cache.
    pub fn restore(&mut self, snapshot: &KvSnapshot) -> Result<()> {
        self.rows.check_undrafted()?;
        let refused = |reason| Err(kvtide_core::Error::SnapshotInvalid { reason }.into());
        let Some(held) = &snapshot.held else {
            return refused("its cache was disposed of before the snapshot was taken");
        };
        let shape = held.buffer.shape;
        if self.rows.shape != Some(shape) {
            return refused("its cache has another shape or dtype");
        }
        if self.rows.owns(held) {
            self.rows.restore(held)?;
            self.planner.commit(snapshot.state);
            return Ok(());
        }
        if snapshot.seq_len() > self.max_seq_len() {
            return refused("it has more tokens than maxSeqLen allows");
        }
        let mut foreign = self.planner.clone();
        foreign.truncate(0)?;
        let next = foreign.plan_append(snapshot.seq_len())?.next;
        self.rows.fill(Some(held), Runs::one(kvtide_core::Run::new(0, next.len())), next.slots(), shape, &mut [])?;
        self.planner.commit(next);
        Ok(())
    }

    /// The number of its current buffer, as in [`Shown::buffer_id`].
    #[must_use]
    pub fn buffer_id(&self) -> Option<u64> {
        self.rows.buffer_id()
    }

    /// The cache's costs.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.rows.stats()
    }

    /// Closes it: its views fail from now on.
    pub fn close(&mut self) {
        self.rows.close();
    }

    /// Checks the invariants that hold between calls.
    pub fn check_invariants(&self) -> std::result::Result<(), String> {
        self.rows.check_invariants(self.planner.state().slots(), self.planner.state().live())
    }

    fn add(&mut self, sources: &mut [Resolved<'_>], room: u32) -> Result<Shown> {
        let tokens = sources.first().map_or(0, Resolved::tokens);
        let plan = self.planner.plan_append_with_room(tokens, room)?;
        let shown = self.rows.carry_out(&plan, plan.next.slots(), plan.next.len().into(), sources)?;
        self.planner.commit(plan.next);
        Ok(shown)
    }
}

#[expect(dead_code, reason = "keeps the promise that a cache may move to another thread")]
fn caches_are_send() {
    fn send<T: Send>() {}
    send::<KvCache>();
    send::<Arc<KvSnapshot>>();
}

impl Drafting for KvCache {
    fn rows(&self) -> &Contiguous {
        &self.rows
    }

    fn rows_mut(&mut self) -> &mut Contiguous {
        &mut self.rows
    }

    fn make_room(&mut self, tokens: u32) -> Result<()> {
        self.planner.plan_append(tokens)?;
        self.add(&mut [], tokens).map(|_| ())
    }

    fn draft(&mut self, sources: &mut [Resolved<'_>; 2], _: bool) -> Result<Shown> {
        self.add(sources, self.rows.drafts.room())
    }

    fn draft_slot(&self) -> u32 {
        self.seq_len() - self.rows.drafts.drafted()
    }

    fn end(&mut self, ending: &Ending) {
        self.planner.cut(ending.dropped);
        self.rows.end_draft(ending);
    }

    fn tree_mask(&self) -> Result<TreeMask> {
        let tree = Tree::joined([self.rows.drafts.tree()])?;
        Ok(TreeMask { before: [0..self.draft_slot().into(), 0..0], window: None, tree, tentative: 0 })
    }
}
