//! The sliding window that both rotating caches are, and its snapshots.

use candle_core::Device;
use kvtide_core::paged::Window;
use kvtide_core::{COUNT_MAX, RotatingOptions, RotatingPlanner, RotatingState, default_slack};

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
    /// The last append before each open transaction, which a roll-back brings back.
    pub(super) before: Vec<Option<LastAppend>>,
}

/// The last append: what it showed, and how many tokens were new.
#[derive(Clone, Debug)]
pub(super) struct LastAppend {
    pub shown: Shown,
    pub tokens: u32,
}

impl<const PARTS: usize> Rotating<PARTS> {
    /// An empty cache; its shape and dtype come with the first append.
    pub fn new(options: RotatingCacheOptions) -> Result<Self> {
        check_kernels(&options.device)?;
        if options.dim >= RANK_MAX {
            return Err(Error::argument("dim", options.dim, format!("below {RANK_MAX}")));
        }
        if PARTS == 2 && options.dim != SEQUENCE {
            return Err(Error::argument("dim", options.dim, format!("{SEQUENCE}, the sequence of K and V")));
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

    /// A cache that goes on from what another one retained, of which `current` tokens were ever appended: a tensor, or K and V.
    pub fn resumed(options: RotatingCacheOptions, retained: &[Source<'_>], current: u64) -> Result<Self> {
        let mut cache = Self::new(options)?;
        let axis = cache.options.dim;
        let name = |part: usize| if PARTS == 2 { ["k", "v"][part] } else { "src" };
        let sources = retained.iter().enumerate().map(|(part, source)| source.resolve(name(part), axis));
        let mut sources = sources.collect::<Result<Vec<_>>>()?;
        let tokens = sources.first().map_or(0, Resolved::tokens);
        let expected = current.min(cache.planner.limit().into());
        let parts = if expected > 0 { PARTS } else { 0 };
        if sources.len() != parts || sources.iter().any(|source| u64::from(source.tokens()) != expected) {
            let expected = format!("{expected}, what a cache retains of {current}");
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

    /// What is retained, oldest first.
    pub fn retained(&self) -> Result<Option<[View; PARTS]>> {
        Ok(self.current_shown()?.map(|shown| shown.views()))
    }

    /// Refuses while a transaction is open.
    pub fn check_undrafted(&self) -> Result<()> {
        self.rows.check_undrafted()
    }

    /// The slack that was asked for.
    #[must_use]
    pub fn slack(&self) -> Option<u32> {
        self.options.slack
    }

    /// The axis of the sequence.
    #[must_use]
    pub fn dim(&self) -> usize {
        self.options.dim
    }

    /// Where it lives.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.options.device
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

    /// Drops all but the first `len` tokens; refused once the window has moved on.
    pub fn set_len(&mut self, len: u64) -> Result<()> {
        self.rows.check_undrafted()?;
        self.planner.set_len(len)?;
        self.last = None;
        Ok(())
    }

    /// Forgets every token; the window and the memory stay.
    pub fn reset(&mut self) -> Result<()> {
        self.rows.check_undrafted()?;
        self.planner.reset();
        self.last = None;
        Ok(())
    }

    /// The number of the buffer that it has now, as [`Shown::buffer_id`] has it.
    #[must_use]
    pub fn buffer_id(&self) -> Option<u64> {
        self.rows.buffer_id()
    }

    /// What it costs.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.rows.stats()
    }

    /// Ends it: its views are refused from now on.
    pub fn close(&mut self) {
        self.last = None;
        self.before.clear();
        self.rows.close();
    }

    /// Checks what must hold between calls.
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

    /// Adds the tokens of sources that agree with each other and with what is there.
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

    /// What is retained, oldest first, before anyone looks at it; nothing when nothing was appended.
    pub fn current_shown(&self) -> Result<Option<Shown>> {
        self.rows.check()?;
        let state = self.planner.settled();
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

    /// What it holds now, whatever happens to it later.
    pub fn snapshot(&self) -> Result<RotatingSnapshot<PARTS>> {
        self.rows.check()?;
        let state = self.planner.settled();
        Ok(RotatingSnapshot { options: self.options.clone(), state, held: self.rows.hold(state.live()) })
    }

    /// Makes it hold again what `snapshot` saw: O(1) for a snapshot of its own, a copy for one of another cache.
    pub fn restore(&mut self, snapshot: &RotatingSnapshot<PARTS>) -> Result<()> {
        self.rows.check_undrafted()?;
        let refused = |reason| Err(kvtide_core::Error::SnapshotInvalid { reason }.into());
        let window = |options: &RotatingCacheOptions| (options.dim, options.max_seq_len, options.sinks);
        if window(&snapshot.options) != window(&self.options) {
            return refused("it is of a cache with another dim, maxSeqLen or sinks");
        }
        if let (Some(own), Some(theirs)) = (self.rows.shape, snapshot.shape())
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
        self.last = None;
        Ok(())
    }

    /// True when `tokens` more can follow `snapshot` here: as many tokens so far, the same window and sinks, and no more than they
    /// hold. Which tokens they are is not compared.
    #[must_use]
    pub fn can_append_from_snapshot(&self, snapshot: &RotatingSnapshot<PARTS>, tokens: u64) -> bool {
        snapshot.current_seq_len() == self.current_seq_len()
            && snapshot.max_seq_len() == self.max_seq_len()
            && snapshot.sinks() == self.sinks()
            && tokens <= u64::from(self.planner.limit())
    }

    /// A new cache that goes on from `snapshot` with the tokens of `sources`.
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

    /// The tokens that were accepted of the last append, of one row of its batch.
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
}

/// What a rotating cache held at one moment. Immutable.
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
