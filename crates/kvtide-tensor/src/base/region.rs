//! Boxes in memory: their place in bytes, and boxes inside a contiguous array. The index arithmetic of `narrow` and
//! `reshape`, done in integers.

use candle_core::Tensor;

use crate::base::dims::Dims;

/// The place of a box in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// The byte offset of its first element.
    pub offset: usize,
    /// The distance from one element to the next in bytes, for each axis.
    pub strides: Dims,
}

impl Place {
    /// Moves the start to the element at `index`.
    #[must_use]
    pub fn at(self, index: &Dims) -> Place {
        let skipped: usize = index.iter().zip(self.strides.iter()).map(|(index, stride)| index * stride).sum();
        Place { offset: self.offset + skipped, ..self }
    }
}

/// A box of size `dims` at `start` in an array of shape `base`; the array begins `offset` elements into its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    pub offset: usize,
    pub base: Dims,
    pub start: Dims,
    pub dims: Dims,
}

impl Region {
    /// A whole array.
    pub fn whole(offset: usize, base: Dims) -> Self {
        Region { offset, base, start: base.zeros(), dims: base }
    }

    /// The part `start .. start + len` along `axis`.
    pub fn narrow(mut self, axis: usize, start: usize, len: usize) -> Self {
        self.start[axis] += start;
        self.dims[axis] = len;
        self
    }

    /// The distance from one index to the next in elements, for each axis.
    pub fn strides(&self) -> Dims {
        self.base.contiguous_strides()
    }

    /// The index in memory of its first element.
    pub fn first(&self) -> usize {
        self.start.iter().zip(self.strides().iter()).fold(self.offset, |at, (start, stride)| at + start * stride)
    }

    /// The place in bytes, for elements of this size.
    pub fn place(&self, element: usize) -> Place {
        let strides = self.strides().scaled(element);
        Place { offset: self.offset * element, strides }.at(&self.start)
    }

    /// The box as a tensor in `memory`.
    pub fn tensor(&self, memory: &Tensor) -> candle_core::Result<Tensor> {
        let elements = self.base.iter().product();
        let mut tensor = memory.flatten_all()?.narrow(0, self.offset, elements)?.reshape(&self.base[..])?;
        for (axis, &size) in self.dims.iter().enumerate() {
            if size != self.base[axis] {
                tensor = tensor.narrow(axis, self.start[axis], size)?;
            }
        }
        Ok(tensor)
    }

    /// True if its elements are contiguous in memory, in order.
    pub fn is_contiguous(&self) -> bool {
        let mut expected = 1;
        for (axis, &stride) in self.strides().iter().enumerate().rev() {
            let size = self.dims[axis];
            if size != 1 && stride != expected {
                return size == 0 || self.dims.contains(&0);
            }
            expected *= size;
        }
        true
    }

    /// The same elements in another shape. The box must be contiguous, and the shape must have as many elements.
    pub fn reshaped(&self, dims: Dims) -> Self {
        Region::whole(self.first(), dims)
    }
}
