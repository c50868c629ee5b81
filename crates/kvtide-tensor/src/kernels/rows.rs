//! Copies rows of tokens between two places that are cut in stretches alike: one stretch for each row of the batch and head.
//!
//! ```text
//! target  |....AAAA......|....BBBB......|     each stretch `stride` bytes behind the one before
//! source  |AAAA|BBBB|
//! ```
//!
//! The shape of nearly every write: K or V without gaps into a buffer, or one buffer into another. What is strided otherwise
//! goes through [`copy`](super::copy()). Bounds are checked once, before the first byte moves.

/// Where the rows of the first stretch are, and how far it is to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stretches {
    /// The byte of the first row.
    pub offset: usize,
    /// Bytes from a stretch to the next.
    pub stride: usize,
}

/// Copies `bytes` bytes in each of `count` stretches from `from` in `source` to `to` in `target`.
pub(crate) fn rows(count: usize, bytes: usize, target: &mut [u8], to: Stretches, source: &[u8], from: Stretches) {
    if count == 0 || bytes == 0 {
        return;
    }
    let reach = |place: Stretches| place.offset + (count - 1) * place.stride + bytes;
    assert!(reach(to) <= target.len() && reach(from) <= source.len(), "rows reach outside their memory");
    let (mut t, mut s) = (to.offset, from.offset);
    for _ in 0..count {
        target[t..t + bytes].copy_from_slice(&source[s..s + bytes]);
        t += to.stride;
        s += from.stride;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    #[should_panic(expected = "outside their memory")]
    fn rows_that_reach_outside_are_refused_before_a_byte_moves() {
        let place = Stretches { offset: 0, stride: 4 };
        rows(3, 4, &mut [0; 12], place, &[0; 11], place);
    }
}
