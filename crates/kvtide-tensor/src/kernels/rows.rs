//! Copies rows of tokens between two places with equal stretches, one stretch for each batch row and head; and moves rows
//! inside one buffer, for a compaction or the accepted path of a draft tree.
//!
//! ```text
//! target  |....AAAA......|....BBBB......|     each stretch `stride` bytes after the one before
//! source  |AAAA|BBBB|
//! ```
//!
//! Nearly every copy has this shape: contiguous K or V into a buffer, one buffer into another, a view into the caller's
//! memory. Other strides go through [`copy`](super::copy()). Bounds are checked once, before the first byte moves. O(bytes);
//! large copies and moves bypass the CPU caches and are shared among threads.

use std::sync::Mutex;

use kvtide_core::SlotMove;

use crate::base::dims::Dims;
use crate::base::lock::lock;
use crate::kernels::stream::{Carrier, SHARE_BYTES, STREAM_BYTES, spread};

/// The place of the rows in the first stretch, and the distance to the next stretch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stretches {
    /// The byte offset of the first row.
    pub offset: usize,
    /// The distance from one stretch to the next in bytes.
    pub stride: usize,
}

impl Stretches {
    /// The distance from one stretch to the next in bytes, in an array of tokens along `axis`; `None` unless tokens are
    /// contiguous within a stretch and stretches are equidistant.
    pub fn stride(dims: &Dims, strides: &Dims, axis: usize, element: usize) -> Option<usize> {
        let (dims, strides) = (&dims[..], &strides[..dims.len()]);
        let mut row = element;
        for inner in (axis..dims.len()).rev() {
            if dims[inner] != 1 && strides[inner] != row {
                return None;
            }
            row *= if inner == axis { 1 } else { dims[inner] };
        }
        let mut next = None;
        let mut stride = 0;
        for outer in (0..axis).rev() {
            if dims[outer] == 1 {
                continue;
            }
            match next {
                None => stride = strides[outer],
                Some(next) if strides[outer] != next => return None,
                Some(_) => {}
            }
            next = Some(strides[outer] * dims[outer]);
        }
        Some(stride)
    }
}

/// Copies `bytes` bytes in each of `count` stretches from `from` in `source` to `to` in `target`.
pub(crate) fn rows(count: usize, bytes: usize, target: &mut [u8], to: Stretches, source: &[u8], from: Stretches) {
    if count == 0 || bytes == 0 {
        return;
    }
    let reach = |place: Stretches| place.offset + (count - 1) * place.stride + bytes;
    assert!(reach(to) <= target.len() && reach(from) <= source.len(), "rows reach outside their memory");
    if count * bytes >= STREAM_BYTES {
        return large(count, bytes, &mut target[to.offset..], to.stride, &source[from.offset..], from.stride);
    }
    let (mut t, mut s) = (to.offset, from.offset);
    for _ in 0..count {
        target[t..t + bytes].copy_from_slice(&source[s..s + bytes]);
        t += to.stride;
        s += from.stride;
    }
}

/// Like [`rows`], with both slices starting at their first row.
fn large(count: usize, bytes: usize, target: &mut [u8], target_stride: usize, source: &[u8], source_stride: usize) {
    let carrier = Carrier::of(count * bytes);
    if target_stride < bytes || count * bytes < SHARE_BYTES {
        for stretch in 0..count {
            let (t, s) = (stretch * target_stride, stretch * source_stride);
            carrier.copy(&mut target[t..t + bytes], &source[s..s + bytes]);
        }
        return;
    }
    // Stretches are divided too, so that a single one can be shared among threads.
    let piece = bytes.div_ceil(PIECES).next_multiple_of(PIECE_ALIGN);
    let stretches = target.chunks_mut(target_stride).take(count).enumerate();
    let pieces: Vec<_> = stretches
        .flat_map(|(stretch, target)| {
            let source = &source[stretch * source_stride..][..bytes];
            target[..bytes].chunks_mut(piece).zip(source.chunks(piece))
        })
        .map(Mutex::new)
        .collect();
    spread(pieces.len(), |index| {
        let (target, source) = &mut *lock(&pieces[index]);
        carrier.copy(target, source);
    });
}

/// The number of pieces of a large stretch.
const PIECES: usize = 8;

/// Pieces begin at multiples of a page, so that no two threads write the same cache line if stretches are page-aligned.
const PIECE_ALIGN: usize = if cfg!(test) { 64 } else { 4096 };

/// Carries out `moves` in each of the stretches of `slots` rows of `row` bytes that make up `bytes`.
///
/// Moves are carried out in order; the source and target of a move may overlap.
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
    fn each_stretch_gets_its_rows() {
        let mut target = [0u8; 12];
        let (to, from) = (Stretches { offset: 1, stride: 6 }, Stretches { offset: 2, stride: 3 });
        rows(2, 2, &mut target, to, &[9, 9, 1, 2, 9, 3, 4], from);
        assert_eq!(target, [0, 1, 2, 0, 0, 0, 0, 3, 4, 0, 0, 0]);
    }

    #[test]
    fn nothing_is_copied_of_nothing() {
        let far = Stretches { offset: 99, stride: 99 };
        rows(0, 4, &mut [], far, &[], far);
        rows(4, 0, &mut [], far, &[], far);
    }

    #[test]
    fn large_copies_are_the_same_copies() {
        for (count, bytes) in [(16, 500), (3, 5000), (1, 10_001), (1, 300), (8, 32), (200, 3)] {
            let (to, from) = (Stretches { offset: 5, stride: bytes + 7 }, Stretches { offset: 3, stride: bytes });
            let source: Vec<u8> = (0..count * bytes + 3).map(|i| (i / 7 + i % 253) as u8).collect();
            let mut target = vec![0; count * (bytes + 7) + 5];
            rows(count, bytes, &mut target, to, &source, from);
            for stretch in 0..count {
                let (t, s) = (5 + stretch * (bytes + 7), 3 + stretch * bytes);
                assert!(target[t..t + bytes] == source[s..s + bytes], "stretch {stretch} of {count}");
                assert_eq!(target[t + bytes..][..7.min(target.len() - t - bytes)], [0; 7][..], "behind {stretch}");
            }
        }
    }

    #[test]
    #[should_panic(expected = "outside their memory")]
    fn rows_that_reach_outside_are_refused_before_a_byte_moves() {
        let place = Stretches { offset: 0, stride: 4 };
        rows(3, 4, &mut [0; 12], place, &[0; 11], place);
    }

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
