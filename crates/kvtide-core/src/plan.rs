//! The plan of an append: the bytes to move, and the bookkeeping that holds once they have moved.
//!
//! ```text
//! 1. storage   a new buffer of `resize` slots, if there is one
//! 2. moves     live rows go to their new slots (from the old buffer, if there is a new one)
//! 3. writes    the new tokens go to their slots
//! 4. reads     the slots that the append returns to the caller
//! ```

use crate::run::{Run, Runs};

/// Rows that move to other slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotMove {
    /// The present slots.
    pub source: Run,
    /// The first slot of the target.
    pub target: u32,
}

impl SlotMove {
    /// True if the rows keep their slots, unless the buffer changes.
    #[must_use]
    pub fn is_identity(&self) -> bool {
        self.source.start == self.target || self.source.is_empty()
    }
}

/// A run of new tokens and its slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotWrite {
    /// The first of the new tokens that is written.
    pub token: u32,
    /// The slots of these tokens.
    pub target: Run,
}

/// The tokens that an append returns to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// Slots of the buffer, after the writes.
    Shared(Runs),
    /// Copies of the rows before the append, followed by all new tokens: more than the buffer holds, so they get memory
    /// of their own.
    Assembled(Runs),
}

/// The plan of an append. `next` is the planner's state once the plan was carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan<S> {
    /// The slots of a new buffer that replaces the present one.
    pub resize: Option<u32>,
    /// All live rows if any of them moves; empty otherwise.
    pub moves: [Option<SlotMove>; 2],
    /// The slots of the new tokens.
    pub writes: [Option<SlotWrite>; 2],
    /// The tokens that the caller sees.
    pub reads: Reads,
    /// The state afterwards.
    pub next: S,
}

impl<S> Plan<S> {
    /// The present moves.
    pub fn moves(&self) -> impl Iterator<Item = SlotMove> + Clone + '_ {
        self.moves.iter().flatten().copied()
    }

    /// The present writes.
    pub fn writes(&self) -> impl Iterator<Item = SlotWrite> + '_ {
        self.writes.iter().flatten().copied()
    }

    /// True if rows move inside the present buffer.
    #[must_use]
    pub fn compacts(&self) -> bool {
        self.resize.is_none() && self.moves().any(|moved| !moved.is_identity())
    }
}

/// Plans the moves that put the nodes of a checked `path` one behind the other, from `first`, the slot of node 0, on.
/// Returns the moves, in order, and the slots they write. Nodes on a path ascend, so each row moves to a lower slot,
/// and never to one that a later move reads.
///
/// ```text
/// slots   first + 0  1  2  3  4        path 0, 2, 4: rows 2 and 4 move to the slots 1 and 2
///                 0  .  2  .  4
/// ```
#[must_use]
pub fn path_moves(first: u32, path: &[u32]) -> (Vec<SlotMove>, Run) {
    let mut moves: Vec<SlotMove> = Vec::new();
    for (place, &node) in path.iter().enumerate().filter(|&(place, &node)| place as u32 != node) {
        let source = first + node;
        let target = first + place as u32;
        match moves.last_mut() {
            Some(last) if last.source.end() == source && last.target + last.source.len == target => {
                last.source.len += 1;
            }
            _ => moves.push(SlotMove { source: Run::new(source, 1), target }),
        }
    }
    let written =
        moves.first().map_or(Run::default(), |moved| Run::new(moved.target, first + path.len() as u32 - moved.target));
    (moves, written)
}

/// The capacity for `needed` slots: `present` doubled until it suffices, at most `limit`. `needed` is at most `limit`.
pub(crate) fn doubled(present: u32, needed: u32, limit: u32) -> u32 {
    if needed <= present {
        return present;
    }
    let mut capacity = u64::from(present.max(1));
    while capacity < u64::from(needed) {
        capacity *= 2;
    }
    u32::try_from(capacity).unwrap_or(u32::MAX).min(limit)
}

#[cfg(test)]
mod tests {
    use super::doubled;

    #[test]
    fn doubles_from_what_is_there_up_to_the_limit() {
        assert_eq!(doubled(64, 65, 2048), 128);
        assert_eq!(doubled(4, 5, 2048), 8);
        assert_eq!(doubled(4, 4, 2048), 4);
        assert_eq!(doubled(6, 7, 8), 8);
        assert_eq!(doubled(0, 5, 2048), 8);
        assert_eq!(doubled(0, 1, 2048), 1);
        assert_eq!(doubled(1 << 30, i32::MAX as u32, i32::MAX as u32), i32::MAX as u32);
    }
}
