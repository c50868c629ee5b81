//! Sets tokens in a tensor of rows.

use candle_core::{Device, Tensor};

use super::boxes::{CHUNK_BYTES, SubBox, boxes};
use crate::base::dims::Dims;
use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::base::region::Place;
use crate::base::zeroed::zeroed_bytes;
use crate::kernels::copy;

/// Rows of tokens as a tensor of two dimensions: the stretches, and the elements of each. It shares its memory.
pub(crate) struct RowTensor {
    tensor: Tensor,
}

/// Tokens to read: sizes, and where they lie.
pub(crate) enum HostOrTensor<'a> {
    /// In the host's memory.
    Host { bytes: &'a [u8], dims: Dims, dtype: DType, from: Place },
    /// On the device, whatever the strides.
    Tensor(Tensor),
}

impl RowTensor {
    /// `tensor`, which has no gaps, as `stretches` stretches; none when it is empty.
    pub fn new(tensor: &Tensor, stretches: usize) -> Result<Option<RowTensor>> {
        let elements = tensor.elem_count();
        if elements == 0 {
            return Ok(None);
        }
        Ok(Some(RowTensor { tensor: tensor.reshape((stretches, elements / stretches))? }))
    }

    /// `count` stretches from `first` on.
    pub fn narrow(&self, first: usize, count: usize) -> Result<RowTensor> {
        Ok(RowTensor { tensor: self.tensor.narrow(0, first, count)? })
    }

    /// A copy of `len` elements from `start` on in each of `count` stretches from `first` on.
    pub fn copied(&self, first: usize, count: usize, start: usize, len: usize) -> Result<Tensor> {
        Ok(self.tensor.narrow(0, first, count)?.narrow(1, start, len)?.force_contiguous()?)
    }

    /// Sets the elements from `start` on, in as many stretches from `first` on as `tensor` has rows.
    pub fn set(&self, first: usize, start: usize, tensor: &Tensor) -> Result<()> {
        Ok(self.tensor.narrow(0, first, tensor.dims()[0])?.slice_set(tensor, 1, start)?)
    }
}

impl HostOrTensor<'_> {
    fn dims(&self) -> Result<Dims> {
        match self {
            HostOrTensor::Host { dims, .. } => Ok(*dims),
            HostOrTensor::Tensor(tensor) => Dims::new("tokens", tensor.dims()),
        }
    }

    fn element(&self) -> usize {
        match self {
            HostOrTensor::Host { dtype, .. } => dtype.bytes(),
            HostOrTensor::Tensor(tensor) => tensor.dtype().size_in_bytes(),
        }
    }

    /// A part of it without gaps, on the device.
    fn part(&self, part: &SubBox, device: &Device) -> Result<Tensor> {
        match self {
            HostOrTensor::Tensor(tensor) => Ok(narrowed(tensor, part)?.contiguous()?),
            HostOrTensor::Host { bytes, dtype, from, .. } => {
                let strides = part.dims.contiguous_strides().scaled(dtype.bytes());
                let mut own = zeroed_bytes(part.dims.iter().product::<usize>() * dtype.bytes())?;
                let to = Place { offset: 0, strides };
                copy(&part.dims, dtype.bytes(), &mut own, to, bytes, from.at(&part.start));
                Ok(dtype.upload(&own, &part.dims, device)?)
            }
        }
    }
}

/// A part of a tensor, in the same memory.
pub(super) fn narrowed(tensor: &Tensor, part: &SubBox) -> Result<Tensor> {
    let mut narrowed = tensor.clone();
    for (axis, (&start, &size)) in part.start.iter().zip(part.dims.iter()).enumerate() {
        narrowed = narrowed.narrow(axis, start, size)?;
    }
    Ok(narrowed)
}

/// Sets the tokens of `source` along `axis`, from the slot `slot` on. `target` has a stretch for each index before `axis`.
pub(crate) fn put(target: &RowTensor, axis: usize, slot: usize, source: &HostOrTensor<'_>) -> Result<()> {
    let dims = source.dims()?;
    let strides = dims.contiguous_strides();
    let row: usize = dims.iter().skip(axis + 1).product();
    for part in boxes(dims, CHUNK_BYTES / source.element()) {
        let stretch_of =
            |index: &Dims| index[..axis].iter().zip(&dims[..axis]).fold(0, |at, (index, size)| at * size + index);
        let within: usize = part.start[axis..].iter().zip(&strides[axis..]).map(|(index, stride)| index * stride).sum();
        let stretches: usize = part.dims[..axis].iter().product();
        let tensor = source.part(&part, target.tensor.device())?;
        let tensor = tensor.reshape((stretches, tensor.elem_count() / stretches))?;
        target.set(stretch_of(&part.start), slot * row + within, &tensor)?;
    }
    Ok(())
}
