//! One layer of one sequence in tensors of its own: growing, or a window.

use std::sync::Arc;

use kvtide_core::model::{LayerGroup, LayerKind};
use kvtide_core::paged::Window;
use kvtide_core::{TransactionId, Tree};

use super::options::{ContiguousOptions, Place};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kv_cache::{KvCache, KvSnapshot};
use crate::memory::Budget;
use crate::options::{KvCacheOptions, RotatingCacheOptions};
use crate::rotating::{RotatingKvCache, RotatingSnapshot};
use crate::source::Source;
use crate::stats::Stats;
use crate::transaction::{BeginOptions, Drafting, Transactional};
use crate::view::{Kv, View};

/// A layer's tokens.
#[derive(Debug)]
pub(super) enum LayerCache {
    Growing(Box<KvCache>),
    Window(Box<RotatingKvCache>),
}

/// What it held at one moment.
#[derive(Clone, Debug)]
pub(super) enum LayerSnapshot {
    Growing(KvSnapshot),
    Window(RotatingSnapshot<2>),
}

/// Calls the same of both kinds.
macro_rules! each_kind {
    ($layer:expr, $cache:ident => $call:expr) => {
        match $layer {
            LayerCache::Growing($cache) => $call,
            LayerCache::Window($cache) => $call,
        }
    };
}

impl LayerCache {
    pub fn new(group: &LayerGroup, options: &ContiguousOptions, dtype: DType, place: &Place) -> Result<Self> {
        if group.head_dim != group.value_head_dim {
            let expected = format!("{}, as headDim, in a contiguous cache", group.head_dim);
            return Err(Error::argument("valueHeadDim", group.value_head_dim, expected));
        }
        let Place { device, budget } = place.clone();
        let budget = Some(budget);
        Ok(match group.kind {
            LayerKind::Sliding { window, sinks } if !options.keep_all => {
                let options = RotatingCacheOptions { max_seq_len: window, sinks, device, budget, ..Default::default() };
                LayerCache::Window(Box::new(RotatingKvCache::new(options)?))
            }
            kind => {
                let cache = KvCache::new(KvCacheOptions {
                    batch_size: options.batch_size,
                    num_kv_heads: group.num_kv_heads,
                    initial_capacity: options.initial_capacity,
                    max_seq_len: options.max_seq_len,
                    head_dim: group.head_dim,
                    dtype,
                    device,
                    budget,
                    ..Default::default()
                })?;
                LayerCache::Growing(Box::new(match kind {
                    LayerKind::Sliding { window, sinks } => cache.sliding(Window::new(window, sinks)?),
                    _ => cache,
                }))
            }
        })
    }

    /// Refuses a change while someone reads it in the background.
    pub fn check_idle(&self) -> Result<()> {
        each_kind!(self, cache => Drafting::check_idle(&**cache))
    }

    /// Refuses what [`LayerCache::begin`] would refuse, and takes the room that it would take.
    pub fn prepare_begin(&mut self, parent: Option<TransactionId>, options: BeginOptions) -> Result<()> {
        each_kind!(self, cache => {
            cache.drafts_mut().check_begin(parent)?;
            match options.max_tokens.unwrap_or(0) {
                0 => Ok(()),
                tokens => cache.make_room(kvtide_core::count("maxTokens", tokens.into())?),
            }
        })
    }

    /// Refuses so many more tokens than it may hold.
    pub fn check_room(&self, tokens: u32) -> Result<()> {
        match self {
            LayerCache::Growing(cache) => cache.check_room(tokens),
            LayerCache::Window(_) => Ok(()),
        }
    }

    /// Makes room for so many more tokens; a window has its room.
    pub fn make_room(&mut self, tokens: u32) -> Result<()> {
        match self {
            LayerCache::Growing(cache) => cache.make_room(tokens),
            LayerCache::Window(_) => Ok(()),
        }
    }

    pub fn begin(&mut self, parent: Option<TransactionId>, options: BeginOptions) -> Result<TransactionId> {
        each_kind!(self, cache => cache.begin_draft(parent, options))
    }

    /// The innermost transaction's tokens follow those of the one below.
    pub fn count_from_below(&mut self) {
        each_kind!(self, cache => cache.drafts_mut().count_from_below());
    }

    /// The tree that its drafted tokens are; nothing where each follows the one before.
    pub fn tree(&self) -> Result<Option<Tree>> {
        let drafts = each_kind!(self, cache => cache.drafts());
        if !drafts.is_branched() || drafts.tree().is_chain() {
            return Ok(None);
        }
        Ok(Some(Tree::joined([drafts.tree()])?))
    }

    pub fn draft_mask(&self, id: TransactionId, budget: &Arc<Budget>) -> Result<View> {
        each_kind!(self, cache => cache.draft_mask(id, budget))
    }

    pub fn draft_positions(&self, id: TransactionId) -> Result<Vec<u64>> {
        each_kind!(self, cache => cache.draft_positions(id))
    }

    pub fn append(&mut self, id: TransactionId, k: Source<'_>, v: Source<'_>, parents: Option<&[i32]>) -> Result<Kv> {
        let shown = each_kind!(self, cache => cache.append_draft(id, k, v, parents)?);
        self.forget_last();
        Ok(shown.into_kv())
    }

    pub fn drafted(&self, id: TransactionId) -> Result<u32> {
        each_kind!(self, cache => cache.drafted(id))
    }

    pub fn commit(&mut self, id: TransactionId, tokens: Option<u64>) -> Result<()> {
        let done = each_kind!(self, cache => cache.commit_draft(id, tokens));
        self.forget_last();
        done
    }

    pub fn commit_path(&mut self, id: TransactionId, path: &[u32]) -> Result<()> {
        let done = each_kind!(self, cache => cache.commit_draft_path(id, path));
        self.forget_last();
        done
    }

    pub fn drop_draft(&mut self, id: TransactionId) {
        each_kind!(self, cache => cache.drop_draft(id));
        self.forget_last();
    }

    /// A window remembers what its last append returned, which may have memory of its own; nobody asks for it here.
    fn forget_last(&mut self) {
        if let LayerCache::Window(cache) = self {
            cache.forget_last();
        }
    }

    /// Refuses what [`LayerCache::truncate`] would refuse.
    pub fn check_truncate(&self, length: u32) -> Result<()> {
        match self {
            LayerCache::Growing(_) => Ok(()),
            LayerCache::Window(cache) => cache.try_set_len(length.into()),
        }
    }

    pub fn truncate(&mut self, length: u32) -> Result<()> {
        match self {
            LayerCache::Growing(cache) => cache.truncate(length.into()),
            LayerCache::Window(cache) => cache.set_len(length.into()),
        }
    }

    pub fn snapshot(&self) -> Result<LayerSnapshot> {
        Ok(match self {
            LayerCache::Growing(cache) => LayerSnapshot::Growing(cache.snapshot()?),
            LayerCache::Window(cache) => LayerSnapshot::Window(cache.snapshot()?),
        })
    }

    pub fn restore(&mut self, snapshot: &LayerSnapshot) -> Result<()> {
        match (self, snapshot) {
            (LayerCache::Growing(cache), LayerSnapshot::Growing(snapshot)) => cache.restore(snapshot),
            (LayerCache::Window(cache), LayerSnapshot::Window(snapshot)) => cache.restore(snapshot),
            _ => Err(super::paged::foreign()),
        }
    }

    /// What it holds; in a window, while tokens are drafted, everything that is kept for them: the columns of their mask.
    pub fn kv(&self) -> Result<Option<Kv>> {
        match self {
            LayerCache::Growing(cache) if cache.is_empty() => Ok(None),
            LayerCache::Growing(cache) => cache.get_kv().map(Some),
            LayerCache::Window(cache) => cache.kept_data(),
        }
    }

    pub fn stats(&self) -> Stats {
        each_kind!(self, cache => cache.stats())
    }

    pub fn check_invariants(&self) -> std::result::Result<(), String> {
        each_kind!(self, cache => cache.check_invariants())
    }
}
