//! Copies a box of elements from one strided place to another.
//!
//! ```text
//! for each index of dims:  target[t.offset + Σ index * t.strides] = source[s.offset + Σ index * s.strides]
//! ```
//!
//! Neighbouring axes that are contiguous on both sides are joined first, so that a write of K or V is one `memcpy` per head
//! and a copy of a whole buffer is one `memcpy`. Bounds are checked before the first byte moves.

use super::rows::{Stretches, rows};
use crate::base::dims::{Dims, RANK_MAX};
use crate::base::region::Place;

#[derive(Clone, Copy, Default)]
struct Axis {
    size: usize,
    target: usize,
    source: usize,
}

/// Copies `dims` elements of `element` bytes from `from` in `source` to `to` in `target`.
pub(crate) fn copy(dims: &Dims, element: usize, target: &mut [u8], to: Place, source: &[u8], from: Place) {
    if dims.contains(&0) {
        return;
    }
    let reach = |place: Place| {
        dims.iter()
            .zip(place.strides.iter())
            .fold(place.offset + element, |end, (size, stride)| end + (size - 1) * stride)
    };
    assert!(reach(to) <= target.len() && reach(from) <= source.len(), "a copy reaches outside its memory");
    let mut axes = [Axis::default(); RANK_MAX];
    let mut count = 0;
    let mut row = element;
    for axis in (0..dims.len()).rev().filter(|&axis| dims[axis] != 1) {
        let next = Axis { size: dims[axis], target: to.strides[axis], source: from.strides[axis] };
        if count == 0 && next.target == row && next.source == row {
            row *= next.size;
            continue;
        }
        match axes[..count].last_mut() {
            Some(last) if next.target == last.target * last.size && next.source == last.source * last.size => {
                last.size *= next.size;
            }
            _ => {
                axes[count] = next;
                count += 1;
            }
        }
    }
    let (stretches, outer) = axes[..count].split_first().unwrap_or((&Axis { size: 1, target: 0, source: 0 }, &[]));
    walk(outer, *stretches, row, target, to.offset, source, from.offset);
}

/// Copies stretches of `row` bytes along `axes`, innermost first.
fn walk(axes: &[Axis], stretches: Axis, row: usize, target: &mut [u8], to: usize, source: &[u8], from: usize) {
    match axes.split_last() {
        None => {
            let to = Stretches { offset: to, stride: stretches.target };
            rows(stretches.size, row, target, to, source, Stretches { offset: from, stride: stretches.source });
        }
        Some((axis, inner)) => {
            for index in 0..axis.size {
                let (to, from) = (to + index * axis.target, from + index * axis.source);
                walk(inner, stretches, row, target, to, source, from);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(offset: usize, strides: &[usize]) -> Place {
        Place { offset, strides: Dims::new("strides", strides).unwrap() }
    }

    /// The same copy, element by element.
    fn oracle(dims: &[usize], element: usize, target: &mut [u8], to: Place, source: &[u8], from: Place) {
        let count: usize = dims.iter().product();
        for mut index in 0..count {
            let (mut t, mut s) = (to.offset, from.offset);
            for axis in (0..dims.len()).rev() {
                t += index % dims[axis] * to.strides[axis];
                s += index % dims[axis] * from.strides[axis];
                index /= dims[axis];
            }
            target[t..t + element].copy_from_slice(&source[s..s + element]);
        }
    }

    #[test]
    fn agrees_with_a_copy_element_by_element() {
        let source: Vec<u8> = (0..4096u32).map(|i| (i * 7 + i / 251) as u8).collect();
        let cases: [(&[usize], usize, Place, Place); 6] = [
            (&[2, 3, 4], 4, place(0, &[48, 16, 4]), place(0, &[48, 16, 4])),
            (&[2, 3, 4], 4, place(8, &[96, 32, 4]), place(4, &[48, 16, 4])),
            (&[2, 3, 4], 2, place(0, &[24, 8, 2]), place(2, &[6, 2, 12])),
            (&[4, 1, 5], 1, place(3, &[5, 99, 1]), place(0, &[0, 7, 1])),
            (&[], 4, place(12, &[]), place(40, &[])),
            (&[3, 0, 2], 4, place(0, &[8, 8, 4]), place(0, &[8, 8, 4])),
        ];
        for (sizes, element, to, from) in cases {
            let dims = Dims::new("dims", sizes).unwrap();
            let (mut actual, mut expected) = (vec![0u8; 512], vec![0u8; 512]);
            copy(&dims, element, &mut actual, to, &source, from);
            oracle(sizes, element, &mut expected, to, &source, from);
            assert_eq!(actual, expected, "{sizes:?}");
        }
    }

    #[test]
    #[should_panic(expected = "outside its memory")]
    fn a_copy_that_reaches_outside_is_refused_before_a_byte_moves() {
        copy(&Dims::new("dims", &[4]).unwrap(), 4, &mut [0; 12], place(0, &[4]), &[0; 16], place(0, &[4]));
    }
}
