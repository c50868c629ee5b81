//! The sliding window of both rotating caches, and its snapshots.

use candle_core::Device;
use kvtide_core::paged::Window;
use kvtide_core::{COUNT_MAX, CURRENT_MAX, RotatingOptions, RotatingPlanner, RotatingState, default_slack};

use crate::base::dims::RANK_MAX;
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::memory::Budget;
use crate::base::stats::Stats;
use crate::contiguous::options::RotatingCacheOptions;
use crate::contiguous::{Contiguous, HeldRows};
use crate::device::check_kernels;
use crate::tensor::buffer::RowShape;
use crate::tensor::shown::Shown;
use crate::tensor::source::{Resolved, SEQUENCE, Source};
use crate::tensor::view::View;

/// A sliding window over `PARTS` tensors that move together.
#[derive(Debug)]
pub struct Rotating<const PARTS: usize> {
    pub(super) options: RotatingCacheOptions,
    pub(super) planner: RotatingPlanner,
    pub(super) rows: Contiguous,
    pub(super) last: Option<LastAppend>,
    /// The last append before each open transaction, which a rollback restores.
    pub(super) before: Vec<Option<LastAppend>>,
}

/// The last append: its result, and the number of new tokens.
#[derive(Clone, Debug)]
pub(super) struct LastAppend {
    pub shown: Shown,
    pub tokens: u32,
}

impl<const PARTS: usize> Rotating<PARTS> {
    /// An empty cache; the first append determines its shape and dtype.
    pub fn new(options: RotatingCacheOptions) -> Result<Self> {
        check_kernels(&options.device)?;
        if options.dim >= RANK_MAX {
            return Err(Error::argument("dim", options.dim, format!("below {RANK_MAX}")));
        }
        if PARTS == 2 && options.dim != SEQUENCE {
            return Err(Error::argument("dim", options.dim, format!("{SEQUENCE}, the sequence axis of K and V")));
        }
        let (window, sinks) = (options.max_seq_len, options.sinks);
        let room = COUNT_MAX.saturating_sub(window).saturating_sub(sinks);
        let planner = RotatingPlanner::new(RotatingOptions {
            window,
            sinks,
            capacity: options.capacity_seq_len.unwrap_or(256),
            slack: options.slack.unwrap_or_else(|| default_slack(window).min(room)),
        })?;
        let budget = Budget::within(&options.device, options.budget.as_ref(), options.memory_limit_bytes);
        let rows = Contiguous::new(budget).sliding(Window::new(window, sinks)?);
        Ok(Rotating { options, planner, rows, last: None, before: Vec::new() })
    }

    /// A cache that continues from the retained tokens of another one, to which `current` tokens were appended in all: a
    /// tensor, or K and V.
    pub fn resumed(options: RotatingCacheOptions, retained: &[Source<'_>], current: u64) -> Result<Self> {
        if current > CURRENT_MAX {
            return Err(Error::argument("currentSeqLen", current, format!("at most {CURRENT_MAX}")));
        }
        let mut cache = Self::new(options)?;
        let axis = cache.options.dim;
        let name = |part: usize| if PARTS == 2 { ["k", "v"][part] } else { "src" };
        let sources = retained.iter().enumerate().map(|(part, source)| source.resolve(name(part), axis));
        let mut sources = sources.collect::<Result<Vec<_>>>()?;
        let tokens = sources.first().map_or(0, Resolved::tokens);
        let expected = current.min(cache.planner.limit().into());
        let parts = if expected > 0 { PARTS } else { 0 };
        if sources.len() != parts || sources.iter().any(|source| u64::from(source.tokens()) != expected) {
            let expected = format!("{expected}, the number that a cache retains of {current}");
            return Err(Error::argument("retained", tokens, expected));
        }
        if let Some(shape) = sources.first().map(|source| source.row_shape(PARTS)) {
            sources.iter().enumerate().try_for_each(|(part, source)| source.check(name(part), &shape))?;
            let (taken, next) = cache.planner.plan_adopt(tokens, current);
            cache.rows.fill(None, taken, next.slots(), shape, &mut sources)?;
            cache.planner.commit(next);
        }
        Ok(cache)
    }

    /// Views of the retained tokens, oldest first.
    pub fn retained(&self) -> Result<Option<[View; PARTS]>> {
        Ok(self.current_shown()?.map(|shown| shown.views()))
    }

    /// Fails while a transaction is open.
    pub fn check_undrafted(&self) -> Result<()> {
        self.rows.check_undrafted()
    }

    /// The requested slack.
    #[must_use]
    pub fn slack(&self) -> Option<u32> {
        self.options.slack
    }

    /// The axis of the sequence.
    #[must_use]
    pub fn dim(&self) -> usize {
        self.options.dim
    }

    /// Its device.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.options.device
    }

    /// The number of tokens ever appended.
    #[must_use]
    pub fn current_seq_len(&self) -> u64 {
        self.planner.state().current()
    }

    /// The size of the window.
    #[must_use]
    pub fn max_seq_len(&self) -> u32 {
        self.options.max_seq_len
    }

    /// The number of tokens at the start that are never dropped.
    #[must_use]
    pub fn sinks(&self) -> u32 {
        self.options.sinks
    }

    /// The number of slots, not counting slack.
    #[must_use]
    pub fn capacity_seq_len(&self) -> u32 {
        self.planner.state().capacity()
    }

    /// The number of tokens that can still be read.
    #[must_use]
    pub fn retained_len(&self) -> u32 {
        self.planner.settled().retained()
    }

    /// The element type, once there are tokens.
    #[must_use]
    pub fn dtype(&self) -> Option<DType> {
        self.rows.shape.map(|shape| shape.dtype)
    }

    /// Checks that the cache can be cut to `len` tokens.
    pub fn try_set_len(&self, len: u64) -> Result<()> {
        self.rows.check_undrafted()?;
        Ok(self.planner.check_len(len)?)
    }

    /// Drops all tokens after the first `len`; fails if the window has already dropped tokens that would be needed.
    pub fn set_len(&mut self, len: u64) -> Result<()> {
        self.rows.check_undrafted()?;
        self.planner.set_len(len)?;
        self.last = None;
        Ok(())
    }

    /// Drops all tokens; the window and the memory stay.
    pub fn reset(&mut self) -> Result<()> {
        self.rows.check_undrafted()?;
        self.planner.reset();
        self.last = None;
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
        self.last = None;
        self.before.clear();
        self.rows.close();
    }

    /// Checks the invariants that hold between calls.
    pub fn check_invariants(&self) -> std::result::Result<(), String> {
        let (state, settled) = (self.planner.state(), self.planner.settled());
        let retained = state.current().min(self.planner.limit().into());
        if u64::from(settled.retained()) != retained {
            return Err(format!("{} tokens retained, {retained} expected", settled.retained()));
        }
        if self.rows.drafts.depth() == 0 && state != settled {
            return Err(format!("no draft is open, and {state:?} keeps more than the window"));
        }
        self.rows.check_invariants(state.slots(), state.live())
    }

    /// Appends the tokens of sources that agree with each other and with the cache.
    pub(super) fn append_parts(&mut self, sources: &mut [Resolved<'_>; PARTS]) -> Result<Shown> {
        let tokens = sources[0].tokens();
        let shown = if tokens == 0 && self.current_seq_len() == 0 {
            self.rows.show_none(sources)?
        } else {
            let plan = self.planner.plan_append(tokens)?;
            let next = plan.next;
            let shown = self.rows.carry_out(&plan, next.slots(), next.current(), sources)?;
            self.planner.commit(next);
            shown
        };
        self.last = Some(LastAppend { shown: shown.clone(), tokens });
        Ok(shown)
    }

    /// The retained tokens, oldest first, without making views; `None` if no token was ever appended.
    pub fn current_shown(&self) -> Result<Option<Shown>> {
        self.rows.check()?;
        let state = self.planner.settled();
        Ok(if state.current() == 0 { None } else { self.rows.show(state.live(), state.current()) })
    }

    /// The result of the last append, without making views.
    #[must_use]
    pub fn last_append_shown(&self) -> Option<Shown> {
        self.last.as_ref().map(|last| last.shown.clone())
    }

    /// The whole buffer, without making views.
    pub fn all_shown(&self) -> Result<Option<Shown>> {
        self.rows.check()?;
        Ok(self.rows.show_all())
    }

    /// A snapshot of its current content, which later changes do not affect.
    pub fn snapshot(&self) -> Result<RotatingSnapshot<PARTS>> {
        self.rows.check()?;
        let state = self.planner.settled();
        Ok(RotatingSnapshot { options: self.options.clone(), state, held: self.rows.hold(state.live()) })
    }

    /// Restores the content of a snapshot: O(1) for a snapshot of this cache, a copy for one of another cache.
    pub fn restore(&mut self, snapshot: &RotatingSnapshot<PARTS>) -> Result<()> {
        self.rows.check_undrafted()?;
        let refused = |reason| Err(kvtide_core::Error::SnapshotInvalid { reason }.into());
        let window = |options: &RotatingCacheOptions| (options.dim, options.max_seq_len, options.sinks);
        if window(&snapshot.options) != window(&self.options) {
            return refused("its cache has another dim, maxSeqLen or sinks");
        }
        if let (Some(own), Some(theirs)) = (self.rows.shape, snapshot.shape())
            && own != theirs
        {
            return refused("its cache has another shape or dtype");
        }
        match &snapshot.held {
            None => self.planner.reset(),
            Some(held) if self.rows.owns(held) => {
                self.rows.restore(held)?;
                self.planner.commit(snapshot.state);
            }
            Some(_) => self.take_over(snapshot, &mut [], snapshot.state.current())?,
        }
        self.last = None;
        Ok(())
    }

    /// True if `tokens` more tokens can follow `snapshot` here: both have had equally many tokens and have the same window
    /// and sinks, and `tokens` is at most their sum. Token ids are not compared.
    #[must_use]
    pub fn can_append_from_snapshot(&self, snapshot: &RotatingSnapshot<PARTS>, tokens: u64) -> bool {
        snapshot.current_seq_len() == self.current_seq_len()
            && snapshot.max_seq_len() == self.max_seq_len()
            && snapshot.sinks() == self.sinks()
            && tokens <= u64::from(self.planner.limit())
    }

    /// A new cache that continues from `snapshot` with the tokens of `sources`.
    pub(super) fn restored(
        snapshot: &RotatingSnapshot<PARTS>,
        sources: &mut [Resolved<'_>],
        keep_len: u64,
    ) -> Result<Self> {
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
        let Some(shape) = snapshot.shape().or_else(|| sources.first().map(|source| source.row_shape(PARTS))) else {
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
        Ok(())
    }

    /// The accepted tokens of the last append, in one row of its batch.
    pub(super) fn accepted_parts(
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
            let expected = format!("at most {}, the end of the last append", current + u64::from(*tokens));
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
}

/// The content of a rotating cache at one moment. Immutable.
#[derive(Clone, Debug)]
pub struct RotatingSnapshot<const PARTS: usize> {
    options: RotatingCacheOptions,
    state: RotatingState,
    held: HeldRows,
}

impl<const PARTS: usize> RotatingSnapshot<PARTS> {
    fn shape(&self) -> Option<RowShape> {
        self.held.as_ref().map(|held| held.buffer.shape)
    }

    /// The number of tokens that had ever been appended.
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

    /// The number of tokens that it retains.
    #[must_use]
    pub fn retained_len(&self) -> u32 {
        self.state.retained()
    }
}
