//! Moves rows of tokens inside one buffer: a compaction, or the accepted path of a draft tree.
//!
//! Bounds are checked once, before the first byte moves. O(bytes moved); large moves go past the caches and are shared among
//! threads, stretch by stretch.

use std::sync::Mutex;

use kvtide_core::SlotMove;

use super::stream::{Carrier, SHARE_BYTES, spread};
use crate::tensor::buffer::lock;

/// Carries out `moves` in each of the stretches of `slots` rows of `row` bytes that make up `bytes`.
///
/// Moves are done in order; source and target of one may overlap.
pub(crate) fn shift(bytes: &mut [u8], slots: usize, row: usize, moves: impl Iterator<Item = SlotMove> + Clone + Sync) {
    let mut rows = 0;
    for moved in moves.clone() {
        let end = moved.target.max(moved.source.start) as usize + moved.source.len as usize;
        assert!(end <= slots, "a move reaches outside its stretch");
        rows += moved.source.len as usize;
    }
    if rows * row == 0 {
        return;
    }
    let total = bytes.len() / slots * rows;
    let carrier = Carrier::of(total);
    let work = |stretch: &mut [u8]| {
        for moved in moves.clone() {
            let (source, target) = (moved.source.start as usize * row, moved.target as usize * row);
            carrier.shift(stretch, source, target, moved.source.len as usize * row);
        }
    };
    let stretches = bytes.chunks_exact_mut(slots * row);
    if total < SHARE_BYTES {
        return stretches.for_each(work);
    }
    let stretches: Vec<_> = stretches.map(Mutex::new).collect();
    spread(stretches.len(), |index| work(&mut lock(&stretches[index])));
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvtide_core::Run;

    #[test]
    fn rows_move_in_each_stretch() {
        let mut bytes: Vec<u8> = (0..20).collect();
        let moves = [SlotMove { source: Run::new(2, 3), target: 1 }];
        shift(&mut bytes, 5, 2, moves.into_iter());
        assert_eq!(bytes, [0, 1, 4, 5, 6, 7, 8, 9, 8, 9, 10, 11, 14, 15, 16, 17, 18, 19, 18, 19]);
    }

    #[test]
    fn large_moves_are_the_same_moves() {
        let (slots, row, stretches) = (50, 24, 8);
        let mut actual: Vec<u8> = (0..slots * row * stretches).map(|i| (i / 7 + i % 253) as u8).collect();
        let mut expected = actual.clone();
        let moves = [SlotMove { source: Run::new(9, 3), target: 2 }, SlotMove { source: Run::new(15, 35), target: 5 }];
        shift(&mut actual, slots, row, moves.into_iter());
        for stretch in expected.chunks_exact_mut(slots * row) {
            stretch.copy_within(9 * row..12 * row, 2 * row);
            stretch.copy_within(15 * row..50 * row, 5 * row);
        }
        assert!(actual == expected);
    }

    #[test]
    #[should_panic(expected = "outside its stretch")]
    fn a_move_into_the_next_stretch_is_refused_before_a_byte_moves() {
        let moves = [SlotMove { source: Run::new(2, 3), target: 1 }, SlotMove { source: Run::new(0, 3), target: 3 }];
        shift(&mut [0; 20], 5, 2, moves.into_iter());
    }
}
