//! Where new tokens come from: a candle tensor, a view, or memory of the caller's own.

use std::borrow::Cow;

use candle_core::Tensor;

use crate::base::dims::Dims;
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::contiguous::kv_pair::SEQUENCE;
use crate::tensor::resolved::Resolved;
use crate::tensor::view::View;

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
    /// It has no batch, and its two axes before the dim were exchanged: only a paged cache takes it.
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

    /// The same, its axes in this order. Tokens of a paged cache may come without the batch: `[n, heads, dim]`.
    pub fn with_layout(mut self, argument: &'static str, layout: SequenceLayout) -> Result<Self> {
        if layout == SequenceLayout::Bshd {
            self.unbatched = self.dims.len() == 3;
            if self.dims.len() != 4 && !self.unbatched {
                let expected = "4 dimensions, for the layout bshd".to_owned();
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

    /// Refuses tokens without a batch in the layout `bshd`, which only a paged cache takes.
    pub(crate) fn check_batched(&self, argument: &'static str) -> Result<()> {
        if !self.unbatched {
            return Ok(());
        }
        let expected = "4 dimensions, for the layout bshd".to_owned();
        Err(Error::ShapeMismatch { argument, value: self.dims.swapped(0, 1).to_vec(), expected })
    }

    /// The tokens `start .. end` of it alone.
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

    /// Bytes from an element to the next, for each axis.
    pub(crate) fn byte_strides(&self) -> Dims {
        self.strides.scaled(self.dtype.bytes())
    }
}

/// New tokens.
#[derive(Clone, Debug)]
pub enum Source<'a> {
    /// A candle tensor, read in place whatever its strides.
    Tensor(&'a Tensor),
    /// A view.
    View(&'a View),
    /// The caller's memory.
    Host(HostTensor<'a>),
}

impl<'a> From<&'a Tensor> for Source<'a> {
    fn from(tensor: &'a Tensor) -> Self {
        Source::Tensor(tensor)
    }
}

impl<'a> From<&'a View> for Source<'a> {
    fn from(view: &'a View) -> Self {
        Source::View(view)
    }
}

impl<'a> From<HostTensor<'a>> for Source<'a> {
    fn from(host: HostTensor<'a>) -> Self {
        Source::Host(host)
    }
}

impl<'a> Source<'a> {
    /// Looks at it as tokens along `axis`.
    pub(crate) fn resolve(&self, argument: &'static str, axis: usize) -> Result<Resolved<'a>> {
        if let Source::Host(host) = self {
            host.check_batched(argument)?;
        }
        Resolved::new(self, argument, axis)
    }

    /// One token's elements' bytes in order: borrowed when they lie so in the caller's memory. A range counts along the
    /// sequence of four dimensions, else along the first.
    pub(crate) fn row_major(&self, argument: &'static str) -> Result<(DType, Cow<'a, [u8]>)> {
        Ok(match self {
            Source::Host(host) if host.range.is_none() && host.strides == host.dims.contiguous_strides() => {
                (host.dtype, Cow::Borrowed(host.bytes))
            }
            Source::View(view) => (view.dtype(), Cow::Owned(view.to_bytes()?)),
            _ => {
                let resolved = Resolved::new(self, argument, self.axis())?;
                (resolved.dtype, Cow::Owned(resolved.to_row_major()?))
            }
        })
    }

    /// Its sizes.
    pub(crate) fn dims(&self) -> Vec<usize> {
        match self {
            Source::Host(host) => host.dims.to_vec(),
            Source::View(view) => view.dims().to_vec(),
            Source::Tensor(tensor) => tensor.dims().to_vec(),
        }
    }

    /// True when `memory` lies in what it reads, so that writing there would change it. Memory of candle's own is no one's.
    #[must_use]
    pub fn overlaps(&self, memory: *const u8, bytes: usize) -> bool {
        match self {
            Source::View(view) => view.overlaps(memory, bytes),
            Source::Host(host) => {
                let start = host.bytes.as_ptr().addr();
                bytes > 0 && memory.addr() < start + host.bytes.len() && memory.addr() + bytes > start
            }
            Source::Tensor(_) => false,
        }
    }

    /// The axis of its tokens, where nothing else says which: that of K and V, else the first.
    pub(crate) fn axis(&self) -> usize {
        match self {
            Source::Host(host) if host.unbatched => 1,
            _ if self.rank() == 4 => SEQUENCE,
            _ => 0,
        }
    }

    /// How many tokens it has: those of its range, or the size before the last.
    pub(crate) fn tokens(&self) -> usize {
        if let Source::Host(host) = self
            && let Some((start, end)) = host.range
        {
            return end.saturating_sub(start);
        }
        let dims = self.dims();
        dims.len().checked_sub(2).map_or(0, |axis| dims[axis])
    }

    /// How many sizes it has.
    pub(crate) fn rank(&self) -> usize {
        match self {
            Source::Host(host) => host.dims.len(),
            Source::View(view) => view.dims().len(),
            Source::Tensor(tensor) => tensor.rank(),
        }
    }
}
