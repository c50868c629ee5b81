//! The rotating caches: one tensor, or K and V together, with one window.
//!
//! Both are [`Rotating`], over one part or two. A one-token append writes one token; what it returns lies in order in the
//! cache's own memory.

use std::sync::Arc;

use candle_core::Device;
use kvtide_core::{RotatingOptions, RotatingPlanner, RotatingState, default_slack};

use crate::buffer::RowShape;
use crate::contiguous::{Contiguous, HeldRows};
use crate::device::check_cpu;
use crate::dims::RANK_MAX;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kv_cache::{SEQUENCE, check_alike, resolve_pair};
use crate::memory::Budget;
use crate::shown::Shown;
use crate::source::{Resolved, Source};
use crate::stats::Stats;
use crate::view::{Kv, View};

/// What a rotating cache is made with.
#[derive(Clone, Debug)]
pub struct RotatingCacheOptions {
    /// The axis of the sequence. K and V have it at 2.
    pub dim: usize,
    /// Tokens in the window, at least 1.
    pub max_seq_len: u32,
    /// Slots at the start, cut to `sinks + max_seq_len`; none: 256.
    pub capacity_seq_len: Option<u32>,
    /// Tokens at the start that are never dropped, in addition to the window.
    pub sinks: u32,
    /// Free slots behind a full window; none: a quarter of it, at least 64.
    pub slack: Option<u32>,
    /// The device; see [`crate::device()`].
    pub device: Device,
    /// The most bytes it may keep, snapshots and copies included.
    pub memory_limit_bytes: Option<u64>,
    /// The budget that this cache's memory is taken from; none: that of the process.
    pub budget: Option<Arc<Budget>>,
}

impl Default for RotatingCacheOptions {
    fn default() -> Self {
        RotatingCacheOptions {
            dim: SEQUENCE,
            max_seq_len: 4096,
            capacity_seq_len: None,
            sinks: 0,
            slack: None,
            device: Device::Cpu,
            memory_limit_bytes: None,
            budget: None,
        }
    }
}

/// A sliding window over `PARTS` tensors that move together.
#[derive(Debug)]
pub struct Rotating<const PARTS: usize> {
    options: RotatingCacheOptions,
    planner: RotatingPlanner,
    rows: Contiguous,
    shape: Option<RowShape>,
    last: Option<LastAppend>,
}

/// One tensor with a sliding window.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use kvtide_tensor::{RotatingCache, RotatingCacheOptions};
///
/// let mut cache = RotatingCache::new(RotatingCacheOptions { max_seq_len: 4, ..Default::default() })?;
/// let tokens = |from: f32, to: f32| Tensor::arange(from, to, &Device::Cpu)?.reshape((1, 1, (), 1));
/// cache.append(&tokens(0., 3.)?)?;
/// let seen = cache.append(&tokens(3., 6.)?)?;
/// assert_eq!(seen.to_f32()?, [0., 1., 2., 3., 4., 5.]);
/// assert_eq!(cache.current_data()?.unwrap().to_f32()?, [2., 3., 4., 5.]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type RotatingCache = Rotating<1>;

/// K and V with one sliding window, written in one operation.
pub type RotatingKvCache = Rotating<2>;

#[derive(Clone, Debug)]
struct LastAppend {
    shown: Shown,
    tokens: u32,
}

/// What a rotating cache held at one moment. Immutable.
#[derive(Clone, Debug)]
pub struct RotatingSnapshot<const PARTS: usize> {
    options: RotatingCacheOptions,
    state: RotatingState,
    held: HeldRows,
    shape: Option<RowShape>,
}

impl<const PARTS: usize> RotatingSnapshot<PARTS> {
    /// Tokens that had ever been appended.
    #[must_use]
    pub fn current_seq_len(&self) -> u64 {
        self.state.current()
    }

    /// The window of its cache.
    #[must_use]
    pub fn max_seq_len(&self) -> u32 {
        self.options.max_seq_len
    }

    /// The sinks of its cache.
    #[must_use]
    pub fn sinks(&self) -> u32 {
        self.options.sinks
    }

    /// The axis of the sequence.
    #[must_use]
    pub fn dim(&self) -> usize {
        self.options.dim
    }

    /// Tokens that it keeps.
    #[must_use]
    pub fn retained_len(&self) -> u32 {
        self.state.retained()
    }
}

impl<const PARTS: usize> Rotating<PARTS> {
    /// An empty cache; its shape and dtype come with the first append.
    pub fn new(options: RotatingCacheOptions) -> Result<Self> {
        check_cpu(&options.device)?;
        if options.dim >= RANK_MAX {
            return Err(Error::argument("dim", options.dim, format!("below {RANK_MAX}")));
        }
        if PARTS == 2 && options.dim != SEQUENCE {
            return Err(Error::argument("dim", options.dim, format!("{SEQUENCE}, the sequence of K and V")));
        }
        let planner = RotatingPlanner::new(RotatingOptions {
            window: options.max_seq_len,
            sinks: options.sinks,
            capacity: options.capacity_seq_len.unwrap_or(256),
            slack: options.slack.unwrap_or_else(|| default_slack(options.max_seq_len)),
        })?;
        let rows = Contiguous::new(Budget::within(options.budget.as_ref(), options.memory_limit_bytes));
        Ok(Rotating { options, planner, rows, shape: None, last: None })
    }

    /// The axis of the sequence.
    #[must_use]
    pub fn dim(&self) -> usize {
        self.options.dim
    }

    /// Tokens ever appended.
    #[must_use]
    pub fn current_seq_len(&self) -> u64 {
        self.planner.state().current()
    }

    /// The window.
    #[must_use]
    pub fn max_seq_len(&self) -> u32 {
        self.options.max_seq_len
    }

    /// Tokens at the start that are never dropped.
    #[must_use]
    pub fn sinks(&self) -> u32 {
        self.options.sinks
    }

    /// Slots, slack not counted.
    #[must_use]
    pub fn capacity_seq_len(&self) -> u32 {
        self.planner.state().capacity()
    }

    /// Tokens that can still be read.
    #[must_use]
    pub fn retained_len(&self) -> u32 {
        self.planner.state().retained()
    }

    /// The element type, once there are tokens.
    #[must_use]
    pub fn dtype(&self) -> Option<DType> {
        self.shape.map(|shape| shape.dtype)
    }

    /// Checks that the cache can be cut to `len` tokens.
    pub fn try_set_len(&self, len: u64) -> Result<()> {
        self.rows.check()?;
        Ok(self.planner.check_len(len)?)
    }

    /// Drops all but the first `len` tokens; refused once the window has moved on.
    pub fn set_len(&mut self, len: u64) -> Result<()> {
        self.rows.check()?;
        self.planner.set_len(len)?;
        self.last = None;
        Ok(())
    }

    /// Forgets every token; the window and the memory stay.
    pub fn reset(&mut self) -> Result<()> {
        self.rows.check()?;
        self.planner.reset();
        self.last = None;
        Ok(())
    }

    /// What it holds now, whatever happens to it later.
    pub fn snapshot(&self) -> Result<RotatingSnapshot<PARTS>> {
        self.rows.check()?;
        let state = self.planner.state();
        Ok(RotatingSnapshot {
            options: self.options.clone(),
            state,
            held: self.rows.hold(state.live()),
            shape: self.shape,
        })
    }

    /// Makes it hold again what `snapshot` saw: O(1) for a snapshot of its own, a copy for one of another cache.
    pub fn restore(&mut self, snapshot: &RotatingSnapshot<PARTS>) -> Result<()> {
        self.rows.check()?;
        let refused = |reason| Err(kvtide_core::Error::SnapshotInvalid { reason }.into());
        let window = |options: &RotatingCacheOptions| (options.dim, options.max_seq_len, options.sinks);
        if window(&snapshot.options) != window(&self.options) {
            return refused("it is of a cache with another dim, maxSeqLen or sinks");
        }
        if let (Some(own), Some(theirs)) = (self.shape, snapshot.shape)
            && own != theirs
        {
            return refused("it is of a cache with another shape or dtype");
        }
        match &snapshot.held {
            None => self.planner.reset(),
            Some(held) if self.rows.owns(held) => {
                self.rows.restore(held)?;
                self.planner.commit(snapshot.state);
            }
            Some(_) => self.take_over(snapshot, &mut [], snapshot.state.current())?,
        }
        self.shape = self.shape.or(snapshot.shape);
        self.last = None;
        Ok(())
    }

    /// True when `tokens` more can follow `snapshot` here: same tokens so far, same window, and no more than it holds.
    #[must_use]
    pub fn can_append_from_snapshot(&self, snapshot: &RotatingSnapshot<PARTS>, tokens: u64) -> bool {
        snapshot.current_seq_len() == self.current_seq_len()
            && snapshot.max_seq_len() == self.max_seq_len()
            && snapshot.sinks() == self.sinks()
            && tokens <= u64::from(self.planner.limit())
    }

    /// What it costs.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.rows.stats()
    }

    /// Ends it: its views are refused from now on.
    pub fn close(&mut self) {
        self.last = None;
        self.rows.close();
    }

    /// Checks what must hold between calls.
    pub fn check_invariants(&self) -> std::result::Result<(), String> {
        let state = self.planner.state();
        let retained = state.current().min(self.planner.limit().into());
        if u64::from(state.retained()) != retained {
            return Err(format!("{} tokens retained, {retained} expected", state.retained()));
        }
        self.rows.check_invariants(state.slots(), state.live())
    }

    /// Adds the tokens of sources that agree with each other and with what is there.
    fn append_parts(&mut self, shape: RowShape, sources: &mut [Resolved<'_>; PARTS]) -> Result<Shown> {
        let tokens = sources[0].tokens();
        let shown = if tokens == 0 && self.current_seq_len() == 0 {
            // The shape stays open, and nothing is there to show.
            self.rows.show_none(shape)?
        } else {
            let plan = self.planner.plan_append(tokens)?;
            let next = plan.next;
            let shown = self.rows.carry_out(&plan, next.slots(), next.current(), shape, sources)?;
            self.planner.commit(next);
            self.shape = Some(shape);
            shown
        };
        self.last = Some(LastAppend { shown: shown.clone(), tokens });
        Ok(shown)
    }

    /// What is retained, oldest first, before anyone looks at it; nothing when nothing was appended.
    pub fn current_shown(&self) -> Result<Option<Shown>> {
        self.rows.check()?;
        let state = self.planner.state();
        Ok(if state.current() == 0 { None } else { self.rows.show(state.live(), state.current()) })
    }

    /// What the last append returned, before anyone looks at it.
    #[must_use]
    pub fn last_append_shown(&self) -> Option<Shown> {
        self.last.as_ref().map(|last| last.shown.clone())
    }

    /// The whole buffer, before anyone looks at it.
    pub fn all_shown(&self) -> Result<Option<Shown>> {
        self.rows.check()?;
        Ok(self.rows.show_all())
    }

    /// The tokens that were accepted of the last append, of one row of its batch.
    fn accepted_parts(
        &self,
        snapshot: &RotatingSnapshot<PARTS>,
        keep_len: u64,
        row: u64,
        batch: u64,
    ) -> Result<Option<[View; PARTS]>> {
        self.rows.check()?;
        let dim = self.options.dim;
        let current = snapshot.current_seq_len();
        let Some(accepted) = keep_len.checked_sub(current) else {
            return Err(Error::argument("keepLen", keep_len, format!("at least {current}, the snapshot's tokens")));
        };
        let Some(LastAppend { shown, tokens }) = &self.last else {
            return Err(kvtide_core::Error::CacheEmpty { operation: "acceptedAppendFromBatchedAppend" }.into());
        };
        let views: [View; PARTS] = shown.views();
        let rows = if dim == 0 { 1 } else { views[0].shape()[0] as u64 };
        if batch == 0 || rows % batch != 0 {
            return Err(Error::argument("batchLen", batch, format!("a divisor of {rows}, the size of dimension 0")));
        }
        if row >= batch {
            return Err(Error::argument("rowIdx", row, format!("below {batch}")));
        }
        if accepted > u64::from(*tokens) {
            let expected = format!("at most {}, what was appended last", current + u64::from(*tokens));
            return Err(Error::argument("keepLen", keep_len, expected));
        }
        if accepted == 0 {
            return Ok(None);
        }
        let part = |view: &View| {
            let first = view.shape()[dim] - *tokens as usize;
            let taken = view.narrow(dim, first, accepted as usize)?;
            let rows = (rows / batch) as usize;
            if dim == 0 { Ok(taken) } else { taken.narrow(0, row as usize * rows, rows) }
        };
        let mut parts = views;
        for view in &mut parts {
            *view = part(view)?;
        }
        Ok(Some(parts))
    }

    /// A new cache that goes on from `snapshot` with the tokens of `sources`.
    fn restored(snapshot: &RotatingSnapshot<PARTS>, sources: &mut [Resolved<'_>], keep_len: u64) -> Result<Self> {
        let accepted = sources.first().map_or(0, |source| u64::from(source.tokens()));
        if keep_len.checked_sub(snapshot.current_seq_len()) != Some(accepted) {
            let expected = format!("{} (the snapshot's tokens) + {accepted} (accepted)", snapshot.current_seq_len());
            return Err(Error::argument("keepLen", keep_len, expected));
        }
        let mut cache = Self::new(snapshot.options.clone())?;
        cache.take_over(snapshot, sources, keep_len)?;
        Ok(cache)
    }

    /// Takes over a snapshot's tokens, followed by those of `sources`.
    fn take_over(
        &mut self,
        snapshot: &RotatingSnapshot<PARTS>,
        sources: &mut [Resolved<'_>],
        current: u64,
    ) -> Result<()> {
        let Some(shape) = snapshot.shape.or_else(|| sources.first().map(|source| source.row_shape(PARTS))) else {
            return Ok(());
        };
        for (source, argument) in sources.iter().zip(["accepted", "accepted"]) {
            source.check(argument, &shape)?;
        }
        let accepted = sources.first().map_or(0, Resolved::tokens);
        let total = snapshot.retained_len() + accepted;
        let (taken, next) = self.planner.plan_adopt(total, current);
        self.rows.fill(snapshot.held.as_deref(), taken, next.slots(), shape, sources)?;
        self.planner.commit(next);
        self.shape = Some(shape);
        Ok(())
    }
}

impl Rotating<1> {
    /// Adds tokens and shows what their queries may see: everything retained after a single token, everything retained
    /// before and all new ones after several that the window cannot hold.
    pub fn append<'a>(&mut self, source: impl Into<Source<'a>>) -> Result<View> {
        Ok(self.append_shown(source)?.view(0))
    }

    /// As [`append`](Self::append), before anyone looks at it.
    pub fn append_shown<'a>(&mut self, source: impl Into<Source<'a>>) -> Result<Shown> {
        self.rows.check()?;
        let source = source.into().resolve("src", self.options.dim)?;
        if let Some(own) = &self.shape {
            source.check("src", own)?;
        }
        let shape = source.row_shape(1);
        self.append_parts(shape, &mut [source])
    }

    /// What is retained, oldest first.
    pub fn current_data(&self) -> Result<Option<View>> {
        Ok(self.current_shown()?.map(|shown| shown.view(0)))
    }

    /// What the last append returned.
    #[must_use]
    pub fn last_append_result(&self) -> Option<View> {
        self.last_append_shown().map(|shown| shown.view(0))
    }

    /// The whole buffer, a live window for inspection.
    pub fn all_data(&self) -> Result<Option<View>> {
        Ok(self.all_shown()?.map(|shown| shown.view(0)))
    }

    /// The tokens of row `row` of `batch` that were accepted of the last append, which began at `snapshot`.
    pub fn accepted_append_from_batched_append(
        &self,
        snapshot: &RotatingSnapshot<1>,
        keep_len: u64,
        row: u64,
        batch: u64,
    ) -> Result<Option<View>> {
        Ok(self.accepted_parts(snapshot, keep_len, row, batch)?.map(|[view]| view))
    }

    /// A new cache that goes on from `snapshot` with the `accepted` tokens, `keep_len` in all.
    pub fn restore_from_snapshot<'a>(
        snapshot: &RotatingSnapshot<1>,
        accepted: Option<Source<'a>>,
        keep_len: u64,
    ) -> Result<Self> {
        match accepted {
            Some(accepted) => {
                Self::restored(snapshot, &mut [accepted.resolve("accepted", snapshot.options.dim)?], keep_len)
            }
            None => Self::restored(snapshot, &mut [], keep_len),
        }
    }
}

impl Rotating<2> {
    /// Adds tokens, `[batch, kv_heads, n, head_dim]` each, and shows what their queries may see, as
    /// [`RotatingCache::append`](Rotating::append) does.
    pub fn append<'a>(&mut self, k: impl Into<Source<'a>>, v: impl Into<Source<'a>>) -> Result<Kv> {
        Ok(self.append_shown(k, v)?.views().into())
    }

    /// As [`append`](Self::append), before anyone looks at it.
    pub fn append_shown<'a>(&mut self, k: impl Into<Source<'a>>, v: impl Into<Source<'a>>) -> Result<Shown> {
        self.rows.check()?;
        let mut sources = resolve_pair(&k.into(), &v.into())?;
        if let Some(own) = &self.shape {
            sources[0].check("k", own)?;
        }
        let shape = check_alike(&sources)?;
        self.append_parts(shape, &mut sources)
    }

    /// What is retained, oldest first.
    pub fn current_data(&self) -> Result<Option<Kv>> {
        Ok(self.current_shown()?.map(|shown| shown.views().into()))
    }

    /// What the last append returned.
    #[must_use]
    pub fn last_append_result(&self) -> Option<Kv> {
        self.last_append_shown().map(|shown| shown.views().into())
    }

    /// The whole buffers, live windows for inspection.
    pub fn all_data(&self) -> Result<Option<Kv>> {
        Ok(self.all_shown()?.map(|shown| shown.views().into()))
    }

    /// The tokens of row `row` of `batch` that were accepted of the last append, which began at `snapshot`.
    pub fn accepted_append_from_batched_append(
        &self,
        snapshot: &RotatingSnapshot<2>,
        keep_len: u64,
        row: u64,
        batch: u64,
    ) -> Result<Option<Kv>> {
        Ok(self.accepted_parts(snapshot, keep_len, row, batch)?.map(Kv::from))
    }

    /// A new cache that goes on from `snapshot` with the `accepted` tokens of K and V, `keep_len` in all.
    pub fn restore_from_snapshot<'a>(
        snapshot: &RotatingSnapshot<2>,
        accepted: Option<(Source<'a>, Source<'a>)>,
        keep_len: u64,
    ) -> Result<Self> {
        match accepted {
            Some((k, v)) => {
                let mut sources = resolve_pair(&k, &v)?;
                check_alike(&sources)?;
                Self::restored(snapshot, &mut sources, keep_len)
            }
            None => Self::restored(snapshot, &mut [], keep_len),
        }
    }
}

#[expect(dead_code, reason = "keeps the promise that a cache may move to another thread")]
fn caches_are_send() {
    fn send<T: Send>() {}
    send::<RotatingKvCache>();
    send::<Arc<RotatingSnapshot<2>>>();
}
