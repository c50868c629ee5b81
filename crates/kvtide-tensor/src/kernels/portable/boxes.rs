//! Cuts a box of elements into smaller ones that follow each other in row-major order.
//!
//! Inner axes stay whole as long as they fit, one axis is cut, and the axes before it count one by one: so each small box is
//! one piece of a row-major array.

use crate::base::dims::Dims;

/// The most bytes that an operation allocates. Unit tests have few bytes to move, and cut them all the same.
pub(super) const CHUNK_BYTES: usize = if cfg!(test) { 64 } else { 1 << 20 };

/// A part of a larger box.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SubBox {
    /// Its first index along each axis.
    pub start: Dims,
    /// Its sizes.
    pub dims: Dims,
}

/// The boxes of at most `elements_max` elements, at least 1, that make up `dims`, in row-major order; none when it is empty.
pub(super) fn boxes(dims: Dims, elements_max: usize) -> impl Iterator<Item = SubBox> {
    let mut step = dims;
    let mut room = elements_max.max(1);
    for axis in (0..dims.len()).rev() {
        step[axis] = dims[axis].min(room).max(1);
        room = if step[axis] == dims[axis] { room / step[axis] } else { 1 };
    }
    let mut next = (!dims.contains(&0)).then(|| dims.zeros());
    std::iter::from_fn(move || {
        let start = next?;
        let mut own = step;
        for (axis, size) in own.iter_mut().enumerate() {
            *size = (*size).min(dims[axis] - start[axis]);
        }
        let mut behind = start;
        next = (0..dims.len()).rev().find_map(|axis| {
            behind[axis] += step[axis];
            if behind[axis] < dims[axis] {
                return Some(behind);
            }
            behind[axis] = 0;
            None
        });
        Some(SubBox { start, dims: own })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shapes(sizes: &[usize], elements_max: usize) -> Vec<(Vec<usize>, Vec<usize>)> {
        let dims = Dims::new("dims", sizes).unwrap();
        boxes(dims, elements_max).map(|own| (own.start.to_vec(), own.dims.to_vec())).collect()
    }

    #[test]
    fn a_box_that_fits_stays_whole() {
        assert_eq!(shapes(&[2, 3], 6), [(vec![0, 0], vec![2, 3])]);
        assert_eq!(shapes(&[], 1), [(vec![], vec![])]);
        assert_eq!(shapes(&[2, 0, 3], 6), []);
    }

    #[test]
    fn boxes_follow_each_other_in_memory() {
        for sizes in [&[5][..], &[3, 4], &[2, 3, 4], &[4, 1, 3, 2], &[1, 1, 7]] {
            for elements_max in 1..30 {
                let dims = Dims::new("dims", sizes).unwrap();
                let strides = dims.contiguous_strides();
                let mut next = 0;
                for own in boxes(dims, elements_max) {
                    let count: usize = own.dims.iter().product();
                    let first: usize = own.start.iter().zip(strides.iter()).map(|(index, stride)| index * stride).sum();
                    let last: usize = first
                        + own.dims.iter().zip(strides.iter()).map(|(size, stride)| (size - 1) * stride).sum::<usize>();
                    assert_eq!((first, last + 1), (next, next + count), "{sizes:?} in boxes of {elements_max}");
                    assert!(count <= elements_max);
                    next += count;
                }
                assert_eq!(next, dims.iter().product::<usize>());
            }
        }
    }
}
