//! Plans for a contiguous cache that grows: tokens in order from slot 0 on, in a buffer that doubles when it is full.
//!
//! ```text
//! slots  0 ........ len ........ slots (capacity) ........ max
//!        [ tokens   | free       ]
//! ```
//!
//! Invariant: `len <= slots <= max`. An append is O(new tokens), and O(len) when the buffer doubles; a truncate is O(1).

use crate::count::COUNT_MAX;
use crate::error::{Error, Result};
use crate::plan::{Plan, Reads, SlotMove, SlotWrite, doubled};
use crate::run::{Run, Runs};

/// The state of a growable cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrowableState {
    len: u32,
    slots: u32,
}

impl GrowableState {
    /// Number of tokens.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// True if there are no tokens.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Slots of the buffer.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// The slots of the tokens.
    #[must_use]
    pub fn live(&self) -> Runs {
        Runs::one(Run::new(0, self.len))
    }
}

/// The planner of `KvCache`, and of the tokens of `RollbackCache`.
#[derive(Clone, Debug)]
pub struct GrowablePlanner {
    max: u32,
    state: GrowableState,
}

impl GrowablePlanner {
    /// Returns an empty cache with `initial` slots (at most `max`) that never holds more than `max` tokens.
    pub fn new(initial: u32, max: u32) -> Result<Self> {
        if max == 0 || max > COUNT_MAX {
            return Err(Error::argument("maxSeqLen", max, "from 1 to 2147483647"));
        }
        Ok(GrowablePlanner { max, state: GrowableState { len: 0, slots: initial.min(max) } })
    }

    /// The most tokens that the cache may hold.
    #[must_use]
    pub fn max(&self) -> u32 {
        self.max
    }

    /// The present state.
    #[must_use]
    pub fn state(&self) -> GrowableState {
        self.state
    }

    /// Plans an append of `tokens` tokens.
    pub fn plan_append(&self, tokens: u32) -> Result<Plan<GrowableState>> {
        self.plan_append_with_room(tokens, 0)
    }

    /// Like [`plan_append`](Self::plan_append), in a buffer with room for `room` tokens, or for the maximum if that is
    /// smaller.
    pub fn plan_append_with_room(&self, tokens: u32, room: u32) -> Result<Plan<GrowableState>> {
        let GrowableState { len, slots } = self.state;
        let total = len.checked_add(tokens).filter(|&total| total <= self.max).ok_or(Error::CacheOverflow {
            seq_len: len.into(),
            new_tokens: tokens.into(),
            max_seq_len: self.max.into(),
        })?;
        let capacity = doubled(slots, total.max(len.saturating_add(room).min(self.max)), self.max);
        let grows = capacity > slots;
        Ok(Plan {
            resize: grows.then_some(capacity),
            moves: [(grows && len > 0).then_some(SlotMove { source: Run::new(0, len), target: 0 }), None],
            writes: [(tokens > 0).then_some(SlotWrite { token: 0, target: Run::new(len, tokens) }), None],
            reads: Reads::Shared(Runs::one(Run::new(0, total))),
            next: GrowableState { len: total, slots: capacity },
        })
    }

    /// Takes over the state of a plan that was carried out, or of a snapshot.
    pub fn commit(&mut self, next: GrowableState) {
        debug_assert!(next.len <= next.slots && next.slots <= self.max);
        self.state = next;
    }

    /// Counts `tokens` tokens that the caller wrote behind the last one itself.
    pub fn increment(&mut self, tokens: u32) -> Result<Run> {
        let GrowableState { len, slots } = self.state;
        let total = len.checked_add(tokens).filter(|&total| total <= slots).ok_or(Error::NoSlots {
            seq_len: len.into(),
            new_tokens: tokens.into(),
            capacity: slots.into(),
            max_seq_len: self.max.into(),
        })?;
        self.state.len = total;
        Ok(Run::new(len, tokens))
    }

    /// Drops the last `tokens` drafted tokens.
    pub fn cut(&mut self, tokens: u32) {
        self.state.len -= tokens;
    }

    /// Drops all but the first `len` tokens.
    pub fn truncate(&mut self, len: u64) -> Result<()> {
        let refused = Error::CannotRollBack {
            requested: len,
            seq_len: self.state.len.into(),
            reason: "the cache has fewer tokens",
        };
        match u32::try_from(len) {
            Ok(len) if len <= self.state.len => {
                self.state.len = len;
                Ok(())
            }
            _ => Err(refused),
        }
    }
}
