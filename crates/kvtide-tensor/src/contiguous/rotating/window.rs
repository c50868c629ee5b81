//! The sliding window that both rotating caches are.

use candle_core::Device;
use kvtide_core::paged::Window;
use kvtide_core::{COUNT_MAX, Drafts, RotatingOptions, RotatingPlanner, default_slack};

use crate::base::dims::RANK_MAX;
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::memory::Budget;
use crate::base::stats::Stats;
use crate::contiguous::Contiguous;
use crate::contiguous::options::RotatingCacheOptions;
use crate::device::check_kernels;
use crate::tensor::buffer::RowShape;
use crate::tensor::resolved::Resolved;
use crate::tensor::shown::Shown;
use crate::tensor::source::SEQUENCE;

/// A sliding window over `PARTS` tensors that move together.
#[derive(Debug)]
pub struct Rotating<const PARTS: usize> {
    pub(super) options: RotatingCacheOptions,
    pub(super) planner: RotatingPlanner,
    pub(super) rows: Contiguous,
    pub(super) shape: Option<RowShape>,
    pub(super) last: Option<LastAppend>,
    pub(super) drafts: Drafts,
    /// For each open transaction, what is not in the planner as it was when it began.
    pub(super) before: Vec<Before>,
}

/// What a roll-back brings back besides the tokens.
#[derive(Clone, Debug)]
pub(super) struct Before {
    pub last: Option<LastAppend>,
    /// The shape was still open.
    pub blank: bool,
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
        let (drafts, before) = (Drafts::default(), Vec::new());
        Ok(Rotating { options, planner, rows, shape: None, last: None, drafts, before })
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
        self.shape.map(|shape| shape.dtype)
    }

    /// Checks that the cache can be cut to `len` tokens.
    pub fn try_set_len(&self, len: u64) -> Result<()> {
        self.check_change()?;
        Ok(self.planner.check_len(len)?)
    }

    /// Drops all but the first `len` tokens; refused once the window has moved on.
    pub fn set_len(&mut self, len: u64) -> Result<()> {
        self.check_change()?;
        self.planner.set_len(len)?;
        self.last = None;
        Ok(())
    }

    /// Forgets every token; the window and the memory stay.
    pub fn reset(&mut self) -> Result<()> {
        self.check_change()?;
        self.planner.reset();
        self.last = None;
        Ok(())
    }

    /// Refuses a change while someone reads it in the background, or a transaction is open.
    pub(super) fn check_change(&self) -> Result<()> {
        self.rows.check_change()?;
        Ok(self.drafts.check_none()?)
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
        self.drafts.check_invariants()?;
        let (state, settled) = (self.planner.state(), self.planner.settled());
        let retained = state.current().min(self.planner.limit().into());
        if u64::from(settled.retained()) != retained {
            return Err(format!("{} tokens retained, {retained} expected", settled.retained()));
        }
        if self.drafts.depth() == 0 && state != settled {
            return Err(format!("no draft is open, and {state:?} keeps more than the window"));
        }
        self.rows.check_invariants(state.slots(), state.live())
    }

    /// Adds the tokens of sources that agree with each other and with what is there.
    pub(super) fn append_parts(&mut self, sources: &mut [Resolved<'_>; PARTS]) -> Result<Shown> {
        let shape = self.shape.unwrap_or_else(|| sources[0].row_shape(PARTS));
        let tokens = sources[0].tokens();
        let shown = if tokens == 0 && self.current_seq_len() == 0 {
            // The shape stays open, and nothing is there to show.
            self.rows.show_none(shape)?
        } else {
            let plan = self.planner.plan_append(tokens)?;
            let next = plan.next;
            let shown = self.rows.carry_out(&plan, next.slots(), next.current(), &shape, sources)?;
            self.planner.commit(next);
            if self.shape.is_none() {
                self.shape = Some(shape);
            }
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
}
