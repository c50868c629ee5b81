//! What a planner answers: the bytes to move, and the bookkeeping that holds once they have moved.
//!
//! ```text
//! 1. storage   a buffer of `resize` slots is taken, when there is one
//! 2. moves     live rows go to their new slots (from the old buffer, when a new one was taken)
//! 3. writes    the new tokens go to theirs
//! 4. reads     the slots that the caller is shown
//! ```

use crate::run::{Run, Runs};

/// Rows that change their place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotMove {
    /// Where they are.
    pub source: Run,
    /// The first slot where they go.
    pub target: u32,
}

impl SlotMove {
    /// True when the rows stay where they are, unless the buffer changes.
    #[must_use]
    pub fn is_identity(&self) -> bool {
        self.source.start == self.target || self.source.is_empty()
    }
}

/// Which of the new tokens go where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotWrite {
    /// The first of the new tokens that is written.
    pub token: u32,
    /// The slots they go to.
    pub target: Run,
}

/// What an append shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// Slots of the buffer, after the writes.
    Shared(Runs),
    /// Rows as they were before, followed by all new tokens, in memory of their own: more than the buffer holds.
    Assembled(Runs),
}

/// The answer to an append. `next` is the planner's state once the plan was carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan<S> {
    /// The slots of the buffer to take instead of the present one.
    pub resize: Option<u32>,
    /// All live rows, when any of them moves; empty otherwise.
    pub moves: [Option<SlotMove>; 2],
    /// Where the new tokens go.
    pub writes: [Option<SlotWrite>; 2],
    /// What the caller is shown.
    pub reads: Reads,
    /// The state after it.
    pub next: S,
}

impl<S> Plan<S> {
    /// The moves there are.
    pub fn moves(&self) -> impl Iterator<Item = SlotMove> + Clone + '_ {
        self.moves.iter().flatten().copied()
    }

    /// The writes there are.
    pub fn writes(&self) -> impl Iterator<Item = SlotWrite> + '_ {
        self.writes.iter().flatten().copied()
    }

    /// True when rows move inside the present buffer.
    #[must_use]
    pub fn compacts(&self) -> bool {
        self.resize.is_none() && self.moves().any(|moved| !moved.is_identity())
    }
}
