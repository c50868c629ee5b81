//! Plans for a sliding window over the newest tokens, with sinks that are never dropped.
//!
//! ```text
//! slots  0 .... sinks ............ start ........ start + len ..... slots
//!        [ sinks | dropped already | window       | free (slack)    ]
//! ```
//!
//! An append writes behind the window and moves `start` forward. When no free slot is left, the window moves to the
//! front (a compaction), so an append is O(new tokens) amortised: one compaction of `window` rows in `slack` appends.
//!
//! Invariants: `held + len = min(current, sinks + window)` tokens are retained, `held` of them in the sinks' slots;
//! until a token has been dropped, token `i` is in slot `i`; after that, the capacity is `sinks + window`.
//!
//! An append of several tokens beyond the limit returns all tokens retained before and all new ones, since each query
//! of a prefill needs its own window. They are returned in place if the slack has room for them, else in memory of
//! their own.

use crate::count::{COUNT_MAX, CURRENT_MAX};
use crate::error::{Error, Result};
use crate::plan::{Plan, Reads, SlotMove, SlotWrite, doubled};
use crate::run::{Run, Runs};

/// The default slack behind a window: a quarter of the window, at least 64 tokens.
#[must_use]
pub fn default_slack(window: u32) -> u32 {
    (window / 4).max(64)
}

/// Options of a rotating cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RotatingOptions {
    /// Tokens in the window, at least 1.
    pub window: u32,
    /// Tokens at the start that are never dropped, in addition to the window.
    pub sinks: u32,
    /// Slots at the beginning; at most `sinks + window`.
    pub capacity: u32,
    /// Free slots behind a full window. More slack means fewer compactions.
    pub slack: u32,
}

/// The state of a rotating cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RotatingState {
    current: u64,
    capacity: u32,
    slots: u32,
    held: u32,
    window: Run,
}

impl RotatingState {
    /// Number of tokens ever appended.
    #[must_use]
    pub fn current(&self) -> u64 {
        self.current
    }

    /// Slots without the slack.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Slots of the buffer, including the slack.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Number of tokens that can still be read.
    #[must_use]
    pub fn retained(&self) -> u32 {
        self.held + self.window.len
    }

    /// Number of sinks among them.
    #[must_use]
    pub fn held(&self) -> u32 {
        self.held
    }

    /// The slots of the retained tokens, oldest first: one run until a token has been dropped.
    #[must_use]
    pub fn live(&self) -> Runs {
        self.runs(self.window)
    }

    /// The slots of the sinks and of `window`, which ends with the newest token.
    fn runs(&self, window: Run) -> Runs {
        if u64::from(self.held) + u64::from(window.len) == self.current {
            Runs::one(Run::new(0, self.held + window.len))
        } else {
            Runs::two(Run::new(0, self.held), window)
        }
    }
}

/// The planner of both rotating caches.
#[derive(Clone, Debug)]
pub struct RotatingPlanner {
    options: RotatingOptions,
    state: RotatingState,
}

impl RotatingPlanner {
    /// Returns an empty window.
    pub fn new(options: RotatingOptions) -> Result<Self> {
        let RotatingOptions { window, sinks, slack, .. } = options;
        if window == 0 {
            return Err(Error::argument("maxSeqLen", window, "at least 1"));
        }
        let slots = u64::from(window) + u64::from(sinks) + u64::from(slack);
        if slots > u64::from(COUNT_MAX) {
            return Err(Error::argument("maxSeqLen + sinks + slack", slots, "at most 2147483647"));
        }
        let state = RotatingState { current: 0, capacity: 0, slots: 0, held: 0, window: Run::new(sinks, 0) };
        let mut planner = RotatingPlanner { options, state };
        planner.state = planner.with_capacity(options.capacity.min(planner.limit()));
        Ok(planner)
    }

    /// The options of this cache.
    #[must_use]
    pub fn options(&self) -> RotatingOptions {
        self.options
    }

    /// The present state.
    #[must_use]
    pub fn state(&self) -> RotatingState {
        self.state
    }

    /// The most tokens that are retained: sinks and window.
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.options.sinks + self.options.window
    }

    /// Plans an append of `tokens` tokens.
    pub fn plan_append(&self, tokens: u32) -> Result<Plan<RotatingState>> {
        let retained = self.state.retained();
        let overflow =
            Error::CacheOverflow { seq_len: retained.into(), new_tokens: tokens.into(), max_seq_len: COUNT_MAX.into() };
        let total = retained.checked_add(tokens).filter(|&total| total <= COUNT_MAX).ok_or(overflow)?;
        self.check_current(tokens)?;
        let capacity = doubled(self.state.capacity, total.min(self.limit()), self.limit());
        let room = self.with_capacity(capacity);
        if total <= self.limit() {
            return Ok(self.plan_behind(room, room.window, tokens));
        }
        // From here on, the window is full or becomes full. In a window that was never full, each token is in the slot
        // of its number.
        let shown_whole = tokens > 1;
        if shown_whole && self.end() + tokens <= room.slots {
            return Ok(self.plan_behind(room, room.window, tokens));
        }
        if shown_whole && total <= room.slots {
            let front = Run::new(self.options.sinks, room.window.len);
            return Ok(self.plan_behind(room, front, tokens));
        }
        Ok(self.plan_newest(room, tokens))
    }

    /// Returns an error if the tokens ever appended would exceed [`CURRENT_MAX`].
    fn check_current(&self, tokens: u32) -> Result<()> {
        let (seq_len, new_tokens) = (self.state.current, tokens.into());
        match CURRENT_MAX.checked_sub(seq_len) {
            Some(left) if new_tokens <= left => Ok(()),
            _ => Err(Error::CacheOverflow { seq_len, new_tokens, max_seq_len: CURRENT_MAX }),
        }
    }

    /// Takes over the state of a plan that was carried out, or of a snapshot.
    pub fn commit(&mut self, next: RotatingState) {
        debug_assert!(next.retained() <= self.limit());
        self.state = next;
    }

    /// Checks that the cache can be cut to `len` tokens.
    pub fn check_len(&self, len: u64) -> Result<()> {
        let current = self.state.current;
        let refused = |reason| Err(Error::CannotRollBack { requested: len, seq_len: current, reason });
        if len > current {
            refused("the cache has fewer tokens")
        } else if len < current && current > u64::from(self.limit()) {
            refused("the window has dropped tokens that it needs")
        } else {
            Ok(())
        }
    }

    /// Drops all but the first `len` tokens.
    pub fn set_len(&mut self, len: u64) -> Result<()> {
        self.check_len(len)?;
        if let Ok(len) = u32::try_from(len)
            && u64::from(len) < self.state.current
        {
            self.state.current = len.into();
            self.state.held = len.min(self.options.sinks);
            self.state.window.len = len - self.state.held;
        }
        Ok(())
    }

    /// Drops all tokens; the buffer stays.
    pub fn reset(&mut self) {
        self.state = RotatingState { current: 0, held: 0, window: Run::new(self.options.sinks, 0), ..self.state };
    }

    /// Plans how a new cache takes over a sequence of `source` tokens, of which `current` were appended in all: the
    /// sinks, and the last tokens that fit in the window. Returns the tokens to copy, in order.
    #[must_use]
    pub fn plan_adopt(&self, source: u32, current: u64) -> (Runs, RotatingState) {
        let held = source.min(self.options.sinks);
        let window = (source - held).min(self.options.window);
        let taken = Runs::two(Run::new(0, held), Run::new(source - window, window));
        let capacity = doubled(self.state.capacity, taken.len(), self.limit());
        let placed = Run::new(self.options.sinks, window);
        (taken, RotatingState { current, held, window: placed, ..self.with_capacity(capacity) })
    }

    /// The present state in a buffer of `capacity` slots, plus the slack once the capacity is at its limit. A buffer
    /// that a long draft made larger stays larger.
    fn with_capacity(&self, capacity: u32) -> RotatingState {
        let slack = if capacity == self.limit() { self.options.slack } else { 0 };
        RotatingState { capacity, slots: self.state.slots.max(capacity + slack), ..self.state }
    }

    /// The slot behind the last token.
    fn end(&self) -> u32 {
        if self.state.window.is_empty() { self.state.held } else { self.state.window.end() }
    }

    /// Keeps all present tokens, with the window at `window`, and writes all new tokens behind them.
    fn plan_behind(&self, room: RotatingState, window: Run, tokens: u32) -> Plan<RotatingState> {
        let end = if window.is_empty() { room.held } else { window.end() };
        let held = (room.held + tokens).min(self.options.sinks);
        let shown = Run::new(window.start, window.len + tokens - (held - room.held));
        let kept = shown.len.min(self.options.window);
        let next = RotatingState {
            current: room.current + u64::from(tokens),
            held,
            window: Run::new(shown.end() - kept, kept),
            ..room
        };
        Plan {
            writes: [write(0, Run::new(end, tokens)), None],
            reads: Reads::Shared(next.runs(shown)),
            next,
            ..self.plan_moves(room, self.state.window, window.start)
        }
    }

    /// Keeps the tokens that still fit in the window, and writes the newest tokens behind them.
    fn plan_newest(&self, room: RotatingState, tokens: u32) -> Plan<RotatingState> {
        let RotatingOptions { window, sinks, .. } = self.options;
        let sunk = tokens.min(sinks - room.held);
        let newest = (tokens - sunk).min(window);
        let keep = room.window.len.min(window - newest);
        let kept = room.window.slice(room.window.len - keep, keep);
        let fits = keep > 0 && kept.end() + newest <= room.slots;
        let placed = Run::new(if fits { kept.start } else { sinks }, keep);
        let next = RotatingState {
            current: room.current + u64::from(tokens),
            held: room.held + sunk,
            window: Run::new(placed.start, keep + newest),
            ..room
        };
        Plan {
            writes: [write(0, Run::new(room.held, sunk)), write(tokens - newest, Run::new(placed.end(), newest))],
            reads: if tokens > 1 { Reads::Assembled(self.state.live()) } else { Reads::Shared(next.live()) },
            next,
            ..self.plan_moves(room, kept, placed.start)
        }
    }

    /// Moves that keep the sinks in place and bring `kept` to `target`; none if nothing changes.
    fn plan_moves(&self, room: RotatingState, kept: Run, target: u32) -> Plan<RotatingState> {
        let resize = (room.slots != self.state.slots).then_some(room.slots);
        let sinks = SlotMove { source: Run::new(0, self.state.held), target: 0 };
        let window = SlotMove { source: kept, target };
        let moved = resize.is_some() || !window.is_identity();
        let live = |rows: SlotMove| (moved && !rows.source.is_empty()).then_some(rows);
        Plan {
            resize,
            moves: [live(sinks), live(window)],
            writes: [None, None],
            reads: Reads::Shared(Runs::default()),
            next: room,
        }
    }
}

/// Drafts behind the window: all tokens from the window's start on stay until the drafts have ended.
///
/// ```text
/// open      [ sinks | dropped already | window as it was | draft      | free ]
/// settled   [ sinks | dropped by now            | window              | free ]    as if the draft had been appended
/// ```
///
/// An *open* state keeps more than the window: the tokens retained before, and the draft behind them, in one run.
/// *Settling* moves the window's start forward; *cutting* drops tokens at the window's end. If all drafted tokens are
/// cut, the state is the one before the draft, except that rows may have moved. An open state without a draft is
/// settled.
///
/// A draft takes the free slots behind the window. If they do not suffice, the window moves to the front, and then the
/// slack doubles: O(new tokens) amortised, like appends.
impl RotatingPlanner {
    /// Plans to add `tokens` tokens to a draft, in a buffer with room for `room` tokens. The plan returns everything
    /// that is kept if `whole` is true, else the tokens that an append would return.
    pub fn plan_draft(&self, tokens: u32, room: u32, whole: bool) -> Result<Plan<RotatingState>> {
        let present = self.state.retained();
        let overflow = |new: u32| Error::CacheOverflow {
            seq_len: present.into(),
            new_tokens: new.into(),
            max_seq_len: COUNT_MAX.into(),
        };
        let behind = tokens.max(room);
        let needed = present.checked_add(behind).filter(|&all| all <= COUNT_MAX).ok_or_else(|| overflow(behind))?;
        self.check_current(tokens)?;
        let limit = self.limit();
        let mut grown = self.with_capacity(doubled(self.state.capacity, needed.min(limit), limit));
        if needed > grown.slots {
            // A window that is not full yet always has enough capacity, so this one is full.
            grown.slots = limit + doubled(grown.slots - limit, needed - limit, COUNT_MAX - limit);
        }
        let stays = grown.slots == self.state.slots && self.end() + behind <= grown.slots;
        let window = self.state.window;
        let target = if stays { window.start } else { self.options.sinks };
        let end = if window.is_empty() { self.state.held } else { target + window.len };
        let next = self.open(RotatingState { window: Run::new(target, window.len), ..grown }, present + tokens);
        let next = RotatingState { current: self.state.current + u64::from(tokens), ..next };
        Ok(Plan {
            writes: [write(0, Run::new(end, tokens)), None],
            reads: Reads::Shared(self.drafted_reads(next, tokens, whole)),
            next,
            ..self.plan_moves(grown, window, target)
        })
    }

    /// Records drafted tokens whose plan was carried out.
    pub fn commit_draft(&mut self, next: RotatingState) {
        self.state = next;
    }

    /// The slot of the first of the last `drafted` tokens, which are drafted.
    #[must_use]
    pub fn draft_slot(&self, drafted: u32) -> u32 {
        self.end() - drafted
    }

    /// Drops the last `tokens` drafted tokens.
    pub fn cut(&mut self, tokens: u32) {
        self.state = self.without(self.state, tokens);
    }

    /// Keeps the drafted tokens as if they had been appended.
    pub fn settle(&mut self) {
        self.state = self.settled();
    }

    /// The state as if all drafted tokens had been appended.
    #[must_use]
    pub fn settled(&self) -> RotatingState {
        self.settled_of(self.state)
    }

    /// The tokens that a draft's newest `new` tokens see: those that an append would return, or everything that is kept
    /// if `whole` is true.
    #[must_use]
    pub fn reads(&self, new: u32, whole: bool) -> Runs {
        self.drafted_reads(self.state, new, whole)
    }

    fn drafted_reads(&self, open: RotatingState, new: u32, whole: bool) -> Runs {
        if whole {
            return open.live();
        }
        let before = self.settled_of(self.without(open, new));
        if new > 1 && before.retained() + new > self.limit() {
            let start = before.window.start;
            open.runs(Run::new(start, open.window.end() - start))
        } else {
            self.settled_of(open).live()
        }
    }

    fn settled_of(&self, open: RotatingState) -> RotatingState {
        let kept = open.window.len.min(self.options.window);
        RotatingState { window: Run::new(open.window.end() - kept, kept), ..open }
    }

    fn without(&self, open: RotatingState, tokens: u32) -> RotatingState {
        let cut = self.open(open, open.retained() - tokens);
        RotatingState { current: open.current - u64::from(tokens), ..cut }
    }

    /// Returns `state` with `retained` tokens from the same slots on.
    fn open(&self, state: RotatingState, retained: u32) -> RotatingState {
        let held = retained.min(self.options.sinks);
        RotatingState { held, window: Run::new(state.window.start, retained - held), ..state }
    }
}

/// A write of the tokens from `token` on; [`None`] if there are none.
fn write(token: u32, target: Run) -> Option<SlotWrite> {
    (!target.is_empty()).then_some(SlotWrite { token, target })
}
