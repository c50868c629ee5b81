//! Where new tokens come from: a candle tensor, a view, or memory of the caller's own.

use candle_core::Tensor;

use crate::tensor::host::HostTensor;
use crate::tensor::view::View;

/// The axis of the sequence in K and V.
pub(crate) const SEQUENCE: usize = 2;

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

impl Source<'_> {
    /// Its sizes.
    pub(crate) fn dims(&self) -> Vec<usize> {
        match self {
            Source::Host(host) => host.dims().to_vec(),
            Source::View(view) => view.dims().to_vec(),
            Source::Tensor(tensor) => tensor.dims().to_vec(),
        }
    }

    /// True when `memory` lies in what it reads, so that writing there would change it. Memory of candle's own is no one's.
    #[must_use]
    pub fn overlaps(&self, memory: *const u8, bytes: usize) -> bool {
        match self {
            Source::View(view) => view.overlaps(memory, bytes),
            Source::Host(host) => host.overlaps(memory, bytes),
            Source::Tensor(_) => false,
        }
    }

    /// The axis of its tokens, where nothing else says which: that of K and V, else the first.
    pub(crate) fn axis(&self) -> usize {
        match self {
            Source::Host(host) if host.is_unbatched() => 1,
            _ if self.rank() == 4 => SEQUENCE,
            _ => 0,
        }
    }

    /// How many tokens it has: those of its range, or the size before the last.
    pub(crate) fn tokens(&self) -> usize {
        if let Source::Host(host) = self
            && let Some((start, end)) = host.range()
        {
            return end.saturating_sub(start);
        }
        let dims = self.dims();
        dims.len().checked_sub(2).map_or(0, |axis| dims[axis])
    }

    /// How many sizes it has.
    pub(crate) fn rank(&self) -> usize {
        match self {
            Source::Host(host) => host.dims().len(),
            Source::View(view) => view.dims().len(),
            Source::Tensor(tensor) => tensor.rank(),
        }
    }
}
