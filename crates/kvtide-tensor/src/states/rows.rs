//! Rows of floats at equal distances, and the checks of sizes.

use crate::base::error::{Error, Result};

/// Rows of `width` floats, one for each token, at equal distances: a tensor, or some columns of one.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    floats: &'a [f32],
    width: usize,
    stride: usize,
}

impl<'a> Rows<'a> {
    /// Contiguous rows.
    #[must_use]
    pub fn new(floats: &'a [f32], width: usize) -> Self {
        Rows { floats, width, stride: width }
    }

    /// Rows of which each begins `stride` floats after the one before it; the first one begins the slice.
    #[must_use]
    pub fn strided(floats: &'a [f32], width: usize, stride: usize) -> Self {
        Rows { floats, width, stride }
    }

    /// The number of floats in a row.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    /// Columns `first .. first + count` of a row.
    #[inline]
    pub(super) fn part(&self, row: usize, first: usize, count: usize) -> &'a [f32] {
        &self.floats[row * self.stride + first..][..count]
    }

    /// One float; a row with a single float stands for all columns.
    #[inline]
    pub(super) fn at(&self, row: usize, column: usize) -> f32 {
        self.floats[row * self.stride + if self.width == 1 { 0 } else { column }]
    }

    /// Fails unless there are `count` rows of one of these widths.
    pub(super) fn check(&self, argument: &'static str, count: usize, widths: &[usize]) -> Result<()> {
        if !widths.contains(&self.width) {
            let widths: Vec<String> = widths.iter().map(usize::to_string).collect();
            let expected = format!("rows of {}", widths.join(" or "));
            return Err(Error::ShapeMismatch { argument, value: vec![count, self.width], expected });
        }
        let floats = count.saturating_sub(1).saturating_mul(self.stride).saturating_add(self.width);
        if self.stride < self.width || (count > 0 && self.floats.len() < floats) {
            let expected = format!("{floats} floats for {count} rows, at most {} apart", self.stride.max(self.width));
            return Err(Error::ShapeMismatch { argument, value: vec![self.floats.len(), self.stride], expected });
        }
        Ok(())
    }
}

/// Fails unless the slice has the product of `shape` in floats.
pub(super) fn check_floats(argument: &'static str, floats: &[f32], shape: &[usize]) -> Result<()> {
    if floats.len() == floats_of(shape) {
        return Ok(());
    }
    let expected = format!("{} floats for {shape:?}", floats_of(shape));
    Err(Error::ShapeMismatch { argument, value: vec![floats.len()], expected })
}

/// The product of a shape; the largest number if that is too small.
pub(super) fn floats_of(shape: &[usize]) -> usize {
    shape.iter().fold(1, |product, &size| product.saturating_mul(size))
}

/// Fails unless a size is in its bounds.
pub(super) fn check_size(argument: &'static str, value: usize, bounds: std::ops::RangeInclusive<usize>) -> Result<()> {
    if bounds.contains(&value) {
        return Ok(());
    }
    let expected = match *bounds.end() {
        usize::MAX => format!("at least {}", bounds.start()),
        most => format!("from {} to {most}", bounds.start()),
    };
    Err(Error::argument(argument, value as u64, expected))
}

/// Fails unless `value` is a positive multiple of `of`.
pub(super) fn check_multiple(argument: &'static str, value: usize, of: usize, named: &str) -> Result<()> {
    if of > 0 && value > 0 && value.is_multiple_of(of) {
        return Ok(());
    }
    Err(Error::argument(argument, value as u64, format!("a positive multiple of {named}, which is {of}")))
}
