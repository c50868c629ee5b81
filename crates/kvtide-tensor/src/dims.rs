//! A shape or a list of strides, kept without an allocation.

use crate::error::{Error, Result};

/// The most dimensions a tensor may have here.
pub const RANK_MAX: usize = 8;

/// Up to [`RANK_MAX`] sizes or strides.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Dims {
    sizes: [usize; RANK_MAX],
    rank: usize,
}

impl Dims {
    /// These sizes, or a refusal when there are too many.
    pub fn new(argument: &'static str, sizes: &[usize]) -> Result<Self> {
        if sizes.len() > RANK_MAX {
            let expected = format!("at most {RANK_MAX} dimensions");
            return Err(Error::ShapeMismatch { argument, value: sizes.to_vec(), expected });
        }
        Ok(Dims::filled(sizes.iter().copied()))
    }

    /// The sizes of a tensor, or a refusal when there are too many, or more elements than memory can address.
    pub fn shape(argument: &'static str, sizes: &[usize]) -> Result<Self> {
        let dims = Dims::new(argument, sizes)?;
        if dims.elements().is_none() {
            let expected = "no more elements than memory can address".to_owned();
            return Err(Error::ShapeMismatch { argument, value: sizes.to_vec(), expected });
        }
        Ok(dims)
    }

    /// The first [`RANK_MAX`] of these sizes.
    fn filled(values: impl Iterator<Item = usize>) -> Self {
        let mut dims = Dims { sizes: [0; RANK_MAX], rank: 0 };
        for value in values.take(RANK_MAX) {
            dims.sizes[dims.rank] = value;
            dims.rank += 1;
        }
        dims
    }

    /// The same, with `size` at `axis`.
    #[must_use]
    pub fn with(mut self, axis: usize, size: usize) -> Self {
        self[axis] = size;
        self
    }

    /// The same, with two axes exchanged.
    #[must_use]
    pub fn swapped(mut self, one: usize, other: usize) -> Self {
        self.swap(one, other);
        self
    }

    /// Every value times `factor`.
    #[must_use]
    pub fn scaled(mut self, factor: usize) -> Self {
        self.iter_mut().for_each(|value| *value *= factor);
        self
    }

    /// As many zeros.
    #[must_use]
    pub fn zeros(self) -> Self {
        Dims::filled(self.iter().map(|_| 0))
    }

    /// The product of all sizes, unless memory cannot address K and V of so many elements. A size of 0 counts as 1 in that
    /// check, so that strides are in bounds too.
    #[must_use]
    pub fn elements(&self) -> Option<usize> {
        const ELEMENTS_MAX: usize = isize::MAX as usize / 8;
        let product = self.iter().try_fold(1usize, |product, &size| product.checked_mul(size.max(1)));
        let product = product.filter(|&product| product <= ELEMENTS_MAX)?;
        Some(if self.contains(&0) { 0 } else { product })
    }

    /// The strides of an array of this shape without gaps. Its elements have been counted.
    #[must_use]
    pub fn contiguous_strides(&self) -> Dims {
        let mut strides = self.zeros();
        let mut stride = 1;
        for axis in (0..self.rank).rev() {
            strides[axis] = stride;
            stride *= self[axis].max(1);
        }
        strides
    }
}

impl std::ops::Deref for Dims {
    type Target = [usize];

    fn deref(&self) -> &[usize] {
        &self.sizes[..self.rank]
    }
}

impl std::ops::DerefMut for Dims {
    fn deref_mut(&mut self) -> &mut [usize] {
        &mut self.sizes[..self.rank]
    }
}

impl std::fmt::Debug for Dims {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self[..].fmt(f)
    }
}
