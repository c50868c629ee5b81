//! The known properties of one tensor: its element type, dimensions and numbers.

use std::rc::Rc;

use super::band::Band;
use crate::proto::ElementType;

/// Tensors with more axes are not evaluated.
pub(super) const RANK_MAX: usize = 16;
/// Lists of axes or sizes are never longer.
const LIST_MAX: usize = 64;
/// Tensors with more elements get no numbers. A mask over 65,536 keys may be repeated for 128 heads.
pub(super) const NUMBERS_MAX: usize = 1 << 23;

#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    pub element: Option<ElementType>,
    pub dims: Option<Vec<usize>>,
    pub data: Option<Rc<Vec<f64>>>,
    /// The numbers of a large table, `[.., rows, columns]`, instead of data.
    pub band: Option<Band>,
}

impl Known {
    pub fn scalar(element: ElementType, number: f64) -> Self {
        Self { element: Some(element), dims: Some(Vec::new()), data: Some(vec![number].into()), band: None }
    }

    pub fn list(element: ElementType, numbers: Vec<f64>) -> Self {
        Self::full(Some(element), vec![numbers.len()], numbers)
    }

    pub fn full(element: Option<ElementType>, dims: Vec<usize>, numbers: Vec<f64>) -> Self {
        Self { element, dims: Some(dims), data: Some(numbers.into()), band: None }
    }

    pub fn sized(element: Option<ElementType>, dims: Vec<usize>) -> Self {
        Self { element, dims: Some(dims), ..Self::default() }
    }

    /// Returns a tensor of these dimensions whose numbers are computed from their places, if there are not too many.
    pub fn filled(element: Option<ElementType>, dims: Vec<usize>, number: impl FnMut(usize) -> f64) -> Self {
        match count(&dims) {
            Some(count) if count <= NUMBERS_MAX => Self::full(element, dims, (0..count).map(number).collect()),
            _ => Self::sized(element, dims),
        }
    }

    pub fn is_whole(&self) -> bool {
        self.element.is_some_and(ElementType::is_int)
    }

    /// The numbers as integers, if there are as few as axes or sizes.
    pub fn ints(&self) -> Option<Vec<i64>> {
        let data = self.data.as_ref().filter(|data| data.len() <= LIST_MAX)?;
        Some(data.iter().map(|&number| number as i64).collect())
    }

    /// Returns a view whose element at each place is the one at the place that `from` returns.
    pub fn moved(&self, dims: Vec<usize>, mut from: impl FnMut(usize) -> usize) -> Self {
        match &self.data {
            Some(data) if data.is_empty() || count(&dims).is_none_or(|count| count > NUMBERS_MAX) => {
                Self::filled(self.element, dims, |_| 0.)
            }
            Some(data) => Self::filled(self.element, dims, |place| data.get(from(place)).copied().unwrap_or(f64::NAN)),
            None => Self::sized(self.element, dims),
        }
    }
}

/// The number of elements; [`None`] if it is too large.
pub(crate) fn count(dims: &[usize]) -> Option<usize> {
    dims.iter().try_fold(1usize, |count, &dim| count.checked_mul(dim))
}

/// Returns an axis, counted from the front.
pub(crate) fn axis(axis: i64, rank: usize) -> Option<usize> {
    let axis = if axis < 0 { axis.checked_add(rank as i64)? } else { axis };
    usize::try_from(axis).ok().filter(|&axis| axis < rank)
}

/// Computes the coordinates of a place.
pub(super) fn coordinates(mut place: usize, dims: &[usize], to: &mut [usize]) {
    for (coordinate, &dim) in to.iter_mut().zip(dims).rev() {
        *coordinate = place % dim.max(1);
        place /= dim.max(1);
    }
}

/// The place of coordinates in a tensor whose dimensions are aligned at the back; an axis of size 1 is broadcast.
pub(super) fn place(coordinates: &[usize], dims: &[usize]) -> usize {
    let skipped = coordinates.len() - dims.len();
    coordinates[skipped..]
        .iter()
        .zip(dims)
        .fold(0usize, |place, (&at, &dim)| place.saturating_mul(dim).saturating_add(if dim == 1 { 0 } else { at }))
}

/// The broadcast dimensions of two tensors.
pub(super) fn broadcast(one: &[usize], other: &[usize]) -> Option<Vec<usize>> {
    let rank = one.len().max(other.len());
    let at = |dims: &[usize], index: usize| (index + dims.len()).checked_sub(rank).map_or(1, |index| dims[index]);
    (0..rank)
        .map(|index| match (at(one, index), at(other, index)) {
            (one, other) if one == other => Some(one),
            (1, dim) | (dim, 1) => Some(dim),
            _ => None,
        })
        .collect()
}
