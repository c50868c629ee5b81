//! The kernels in candle's tensor operations alone: used on devices without kernels, and as the reference in tests.
//!
//! ```text
//! source  (host memory, a candle tensor, a view)
//!   boxes of at most 1 MiB, row by row        boxes
//!   each one made contiguous on the device
//!   and written to its place                  put      or downloaded to the host: fetch
//! ```
//!
//! A box keeps its inner axes whole as long as they fit; one axis is divided, and the axes before it have size one. So each
//! small box is contiguous in a row-major array.
//!
//! No operation allocates more than that. Rows that move inside a buffer also go through such a temporary tensor, in an
//! order in which no row is overwritten before it was read. Each operation takes candle's lock separately, so a reader
//! checks the buffer's log after the last one. O(bytes moved).

use candle_core::{Device, Tensor};

use crate::base::dims::Dims;
use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::base::region::Place;
use crate::base::zeroed::zeroed_bytes;
use crate::kernels::copy;

/// Rows of tokens as a tensor of two dimensions: the stretches, and the elements of each. It shares the tensor's memory.
pub(crate) struct RowTensor {
    tensor: Tensor,
}

/// Tokens to read: their sizes and place.
pub(crate) enum HostOrTensor<'a> {
    /// In host memory.
    Host { bytes: &'a [u8], dims: Dims, dtype: DType, from: Place },
    /// On the device, with any strides.
    Tensor(Tensor),
}

impl RowTensor {
    /// `tensor`, which must be contiguous, as `stretches` stretches; `None` if it is empty.
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

    /// A contiguous part of it, on the device.
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
fn narrowed(tensor: &Tensor, part: &SubBox) -> Result<Tensor> {
    let mut narrowed = tensor.clone();
    for (axis, (&start, &size)) in part.start.iter().zip(part.dims.iter()).enumerate() {
        narrowed = narrowed.narrow(axis, start, size)?;
    }
    Ok(narrowed)
}

/// Writes the tokens of `source` along `axis`, from slot `slot` on. `target` has one stretch for each index before `axis`.
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

/// Copies the elements of `source` to the place `to` in `target`.
pub(crate) fn fetch(source: &Tensor, dtype: DType, target: &mut [u8], to: Place) -> Result<()> {
    let element = dtype.bytes();
    for part in boxes(Dims::new("view", source.dims())?, CHUNK_BYTES / element) {
        let from = Place { offset: 0, strides: part.dims.contiguous_strides().scaled(element) };
        let bytes = dtype.download(&narrowed(source, &part)?.contiguous()?)?;
        copy(&part.dims, element, target, to.at(&part.start), &bytes, from);
    }
    Ok(())
}

/// Copies `len` elements of `element` bytes in each of `count` stretches from `from` in `source` to `to` in `target`, which
/// may overlap in the same memory.
pub(crate) fn relay(
    count: usize,
    len: usize,
    element: usize,
    source: &RowTensor,
    from: usize,
    target: &RowTensor,
    to: usize,
) -> Result<()> {
    let parts: Vec<SubBox> = boxes(Dims::pair(count, len), CHUNK_BYTES / element).collect();
    let move_part = |part: &SubBox| {
        let (first, start) = (part.start[0], part.start[1]);
        let rows = source.copied(first, part.dims[0], from + start, part.dims[1])?;
        target.set(first, to + start, &rows)
    };
    // When rows move up, the last part goes first, so that every row is read before it is overwritten.
    if to > from { parts.iter().rev().try_for_each(move_part) } else { parts.iter().try_for_each(move_part) }
}

/// The most bytes that an operation allocates. Small in unit tests, so that they exercise the division too.
const CHUNK_BYTES: usize = if cfg!(test) { 64 } else { 1 << 20 };

/// A part of a larger box.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SubBox {
    /// Its first index along each axis.
    start: Dims,
    /// Its sizes.
    dims: Dims,
}

/// Divides `dims` into boxes of at most `elements_max` elements, at least 1, in row-major order; none if `dims` is empty.
fn boxes(dims: Dims, elements_max: usize) -> impl Iterator<Item = SubBox> {
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
