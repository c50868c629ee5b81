//! A tensor in the memory of the caller.

use crate::base::dims::Dims;
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};

/// The order of a host tensor's four axes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SequenceLayout {
    /// batch, heads, sequence, dim
    #[default]
    Bhsd,
    /// batch, sequence, heads, dim
    Bshd,
}

/// A tensor in the caller's memory, row-major in the order of its layout.
#[derive(Clone, Debug)]
pub struct HostTensor<'a> {
    bytes: &'a [u8],
    dtype: DType,
    dims: Dims,
    strides: Dims,
    range: Option<(usize, usize)>,
    /// It has no batch axis, and the two axes before the head dim were swapped: only a paged cache accepts it.
    unbatched: bool,
}

impl<'a> HostTensor<'a> {
    /// `bytes` as a tensor of this shape.
    pub fn new(argument: &'static str, bytes: &'a [u8], dtype: DType, shape: &[usize]) -> Result<Self> {
        let dims = Dims::shape(argument, shape)?;
        let wanted = dims.elements().and_then(|elements| elements.checked_mul(dtype.bytes()));
        if wanted != Some(bytes.len()) {
            let expected = format!("{} {dtype} elements, as many as its data has", bytes.len() / dtype.bytes());
            return Err(Error::ShapeMismatch { argument, value: shape.to_vec(), expected });
        }
        Ok(HostTensor { bytes, dtype, dims, strides: dims.contiguous_strides(), range: None, unbatched: false })
    }

    /// Interprets the axes in this order. Tokens of a paged cache may lack the batch axis: `[n, heads, dim]`.
    pub fn with_layout(mut self, argument: &'static str, layout: SequenceLayout) -> Result<Self> {
        if layout == SequenceLayout::Bshd {
            self.unbatched = self.dims.len() == 3;
            if self.dims.len() != 4 && !self.unbatched {
                let expected = "4 dimensions for the layout bshd".to_owned();
                return Err(Error::ShapeMismatch { argument, value: self.dims.to_vec(), expected });
            }
            let heads = self.dims.len() - 3;
            self.dims = self.dims.swapped(heads, heads + 1);
            self.strides = self.strides.swapped(heads, heads + 1);
        }
        Ok(self)
    }

    /// One row of a batch as `[tokens, heads, dim]`.
    pub(crate) fn without_batch(mut self) -> Self {
        (self.dims, self.strides) = (self.dims.rest().swapped(0, 1), self.strides.rest().swapped(0, 1));
        self
    }

    /// Rejects tokens without a batch axis in the layout `bshd`, which only a paged cache accepts.
    pub(crate) fn check_batched(&self, argument: &'static str) -> Result<()> {
        if !self.unbatched {
            return Ok(());
        }
        let expected = "4 dimensions for the layout bshd".to_owned();
        Err(Error::ShapeMismatch { argument, value: self.dims.swapped(0, 1).to_vec(), expected })
    }

    /// Limits the tensor to the tokens `start .. end`.
    #[must_use]
    pub fn with_range(mut self, start: usize, end: usize) -> Self {
        self.range = Some((start, end));
        self
    }

    pub(crate) fn dims(&self) -> Dims {
        self.dims
    }

    pub(crate) fn dtype(&self) -> DType {
        self.dtype
    }

    pub(crate) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    pub(crate) fn range(&self) -> Option<(usize, usize)> {
        self.range
    }

    /// True if it has no batch axis, and the two axes before the head dim were swapped.
    pub(crate) fn is_unbatched(&self) -> bool {
        self.unbatched
    }

    /// True if its elements are in the order of its axes, and all of them are read.
    pub(crate) fn is_row_major(&self) -> bool {
        self.range.is_none() && self.strides == self.dims.contiguous_strides()
    }

    /// True if the `bytes` bytes at `memory` overlap it.
    pub(crate) fn overlaps(&self, memory: *const u8, bytes: usize) -> bool {
        let start = self.bytes.as_ptr().addr();
        bytes > 0 && memory.addr() < start + self.bytes.len() && memory.addr() + bytes > start
    }

    /// The distance from one element to the next in bytes, for each axis.
    pub(crate) fn byte_strides(&self) -> Dims {
        self.strides.scaled(self.dtype.bytes())
    }
}
