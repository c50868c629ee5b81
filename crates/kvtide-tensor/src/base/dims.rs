//! A shape or a list of strides, stored without an allocation.

use crate::base::error::{Error, Result};

/// The largest number of dimensions that a tensor may have.
pub const RANK_MAX: usize = 8;

/// Up to [`RANK_MAX`] sizes or strides; unused ones are zero.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Dims {
    sizes: [usize; RANK_MAX],
    rank: usize,
}

impl Dims {
    /// Stores these sizes; fails if there are more than [`RANK_MAX`].
    #[inline]
    pub fn new(argument: &'static str, sizes: &[usize]) -> Result<Self> {
        let mut dims = Dims { sizes: [0; RANK_MAX], rank: sizes.len() };
        match dims.sizes.get_mut(..sizes.len()) {
            Some(own) => own.copy_from_slice(sizes),
            None => return Err(refused(argument, sizes, format!("at most {RANK_MAX} dimensions"))),
        }
        Ok(dims)
    }

    /// Stores the shape of a tensor; fails if it has too many dimensions, or more elements than memory can address.
    #[inline]
    pub fn shape(argument: &'static str, sizes: &[usize]) -> Result<Self> {
        let dims = Dims::new(argument, sizes)?;
        if dims.elements().is_none() {
            return Err(refused(argument, sizes, "no more elements than memory can address".to_owned()));
        }
        Ok(dims)
    }

    /// Two sizes.
    #[must_use]
    pub fn pair(first: usize, second: usize) -> Self {
        let mut dims = Dims { sizes: [0; RANK_MAX], rank: 2 };
        dims[0] = first;
        dims[1] = second;
        dims
    }

    /// True if all sizes are equal, except the one at `axis`, which may differ.
    #[must_use]
    pub fn agrees(&self, other: &Dims, axis: usize) -> bool {
        self.rank == other.rank
            && self.iter().zip(other.iter()).enumerate().all(|(at, (own, theirs))| own == theirs || at == axis)
    }

    /// The same, with `size` at `axis`.
    #[must_use]
    #[inline]
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

    /// All but the first.
    #[must_use]
    pub fn rest(mut self) -> Self {
        self.sizes.copy_within(1.., 0);
        self.sizes[RANK_MAX - 1] = 0;
        self.rank -= 1;
        self
    }

    /// Every value times `factor`.
    #[must_use]
    #[inline]
    pub fn scaled(mut self, factor: usize) -> Self {
        self.iter_mut().for_each(|value| *value *= factor);
        self
    }

    /// The same number of zeros.
    #[must_use]
    pub fn zeros(self) -> Self {
        Dims { sizes: [0; RANK_MAX], rank: self.rank }
    }

    /// The product of all sizes, or `None` if memory cannot address K and V with so many elements. A size of 0 counts as 1
    /// in that check, so that strides are in bounds too.
    #[must_use]
    pub fn elements(&self) -> Option<usize> {
        const ELEMENTS_MAX: usize = isize::MAX as usize / 8;
        let (mut product, mut empty) = (1usize, false);
        for &size in self.iter() {
            empty |= size == 0;
            product = product.checked_mul(size.max(1))?;
        }
        if product > ELEMENTS_MAX {
            return None;
        }
        Some(if empty { 0 } else { product })
    }

    /// The strides of a contiguous array of this shape. The caller has checked [`Dims::elements`].
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

#[cold]
fn refused(argument: &'static str, sizes: &[usize], expected: String) -> Error {
    Error::ShapeMismatch { argument, value: sizes.to_vec(), expected }
}

impl std::ops::Deref for Dims {
    type Target = [usize];

    #[inline]
    fn deref(&self) -> &[usize] {
        &self.sizes[..self.rank]
    }
}

impl std::ops::DerefMut for Dims {
    #[inline]
    fn deref_mut(&mut self) -> &mut [usize] {
        &mut self.sizes[..self.rank]
    }
}

impl std::fmt::Debug for Dims {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self[..].fmt(f)
    }
}
