//! The accepted path of a draft tree: which rows move, so that it lies in one run.
//!
//! ```text
//! slots   first + 0  1  2  3  4        path 0, 2, 4: rows 2 and 4 move to the slots 1 and 2
//!                 0  .  2  .  4
//! ```
//!
//! Nodes on a path ascend, so that a row moves to a lower slot, and never to one that is still to be read. O(path).

use crate::plan::SlotMove;
use crate::run::Run;

/// How the nodes of `path`, a path that was checked, come to lie one behind the other from the slot `first` of node 0 on:
/// the moves, in order, and the slots they write.
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
