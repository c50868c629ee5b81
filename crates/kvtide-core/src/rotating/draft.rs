//! Drafts behind a window: everything from its start on stays until they have ended.
//!
//! ```text
//! open      [ sinks | dropped already | window as it was | draft      | free ]
//! settled   [ sinks | dropped by now            | window              | free ]    as if the draft had been appended
//! ```
//!
//! An *open* state keeps more than the window: what was retained before, and the draft behind it in one run. To *settle* it is
//! to move the window's start on, to *cut* it is to drop tokens at its end: both O(1), and a cut down to nothing drafted is
//! the state before, wherever the rows lie by then. An open state without a draft is settled.
//!
//! A draft takes the free slots behind the window, then the window moves to the front, then the slack doubles: O(new tokens)
//! amortised, like appends.

use super::{RotatingPlanner, RotatingState, write};
use crate::count::COUNT_MAX;
use crate::error::{Error, Result};
use crate::plan::{Plan, Reads, doubled};
use crate::run::{Run, Runs};

impl RotatingPlanner {
    /// How to add `tokens` tokens to a draft, in a buffer that has room for `room`; with `whole` it shows everything that is
    /// kept, else what an append of them would.
    pub fn plan_draft(&self, tokens: u32, room: u32, whole: bool) -> Result<Plan<RotatingState>> {
        let present = self.state.retained();
        let overflow = |new: u32| Error::CacheOverflow {
            seq_len: present.into(),
            new_tokens: new.into(),
            max_seq_len: COUNT_MAX.into(),
        };
        let behind = tokens.max(room);
        let needed = present.checked_add(behind).filter(|&all| all <= COUNT_MAX).ok_or_else(|| overflow(behind))?;
        let limit = self.limit();
        let mut grown = self.with_capacity(doubled(self.state.capacity, needed.min(limit), limit));
        if needed > grown.slots {
            // A window that is not full yet has a capacity that fits, so that this one is.
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

    /// Takes over a plan for drafted tokens that was carried out.
    pub fn commit_draft(&mut self, next: RotatingState) {
        self.state = next;
    }

    /// The slot of the first of `drafted` drafted tokens.
    #[must_use]
    pub fn draft_slot(&self, drafted: u32) -> u32 {
        self.end() - drafted
    }

    /// Drops the last `tokens` drafted tokens.
    pub fn cut(&mut self, tokens: u32) {
        self.state = self.without(self.state, tokens);
    }

    /// Takes what is drafted among its own, as if it had been appended.
    pub fn settle(&mut self) {
        self.state = self.settled();
    }

    /// Where it would stand if everything drafted had been appended.
    #[must_use]
    pub fn settled(&self) -> RotatingState {
        self.settled_of(self.state)
    }

    /// What it shows of a draft's newest `new` tokens: what an append of them would, or with `whole` everything that is kept.
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

    /// `state`, with `retained` tokens from the same slots on.
    fn open(&self, state: RotatingState, retained: u32) -> RotatingState {
        let held = retained.min(self.options.sinks);
        RotatingState { held, window: Run::new(state.window.start, retained - held), ..state }
    }
}
