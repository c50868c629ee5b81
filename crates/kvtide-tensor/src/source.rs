//! Where new tokens come from: a candle tensor, a view, or memory of the caller's own.

use std::borrow::Cow;

use candle_core::Tensor;
use kvtide_core::count;

use crate::buffer::{Buffer, RowShape};
use crate::dims::Dims;
use crate::dtype::DType;
use crate::edit::inspect;
use crate::error::{Error, Result};
use crate::kernels::{Place, copy};
use crate::kv_cache::SEQUENCE;
use crate::memory::Budget;
use crate::view::View;
use crate::zeroed::zeroed_bytes;

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
        Ok(HostTensor { bytes, dtype, dims, strides: dims.contiguous_strides(), range: None })
    }

    /// The same, its axes in this order.
    pub fn with_layout(mut self, argument: &'static str, layout: SequenceLayout) -> Result<Self> {
        if layout == SequenceLayout::Bshd {
            if self.dims.len() != 4 {
                let expected = "4 dimensions, for the layout bshd".to_owned();
                return Err(Error::ShapeMismatch { argument, value: self.dims.to_vec(), expected });
            }
            self.dims = self.dims.swapped(1, 2);
            self.strides = self.strides.swapped(1, 2);
        }
        Ok(self)
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

    pub(crate) fn place(&self) -> Place {
        Place { offset: 0, strides: self.strides.scaled(self.dtype.bytes()) }
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

/// A source whose strides and tokens are known.
pub(crate) struct Resolved<'a> {
    pub dims: Dims,
    pub dtype: DType,
    axis: usize,
    memory: Memory<'a>,
    /// Where the tokens lie, and how many: one piece, or the two runs of a view.
    pieces: [(Place, usize); 2],
}

enum Memory<'a> {
    Host(&'a [u8]),
    Tensor(&'a Tensor),
    Staged(Vec<u8>),
}

impl<'a> Source<'a> {
    /// Looks at it as tokens along `axis`.
    pub(crate) fn resolve(&self, argument: &'static str, axis: usize) -> Result<Resolved<'a>> {
        let (dims, dtype) = match self {
            Source::Host(host) => (host.dims, host.dtype),
            Source::View(view) => (view.dims(), view.dtype()),
            Source::Tensor(tensor) => (Dims::shape(argument, tensor.dims())?, tensor_dtype(argument, tensor)?),
        };
        if dims.len() <= axis {
            let expected = format!("more than {axis} dimensions, the sequence along dimension {axis}");
            return Err(Error::ShapeMismatch { argument, value: dims.to_vec(), expected });
        }
        let tokens = dims[axis];
        let none = (Place { offset: 0, strides: dims.zeros() }, 0);
        let resolved = match self {
            Source::Host(host) => {
                let (start, end) = host.range.unwrap_or((0, tokens));
                if start > end || end > tokens {
                    let expected = format!("start <= end <= {tokens}, the tokens in its data");
                    return Err(Error::argument("range", format!("[{start}, {end}]"), expected));
                }
                let place = host.place();
                let place = Place { offset: start * place.strides[axis], ..place };
                let dims = dims.with(axis, end - start);
                Resolved { dims, dtype, axis, memory: Memory::Host(host.bytes), pieces: [(place, end - start), none] }
            }
            Source::Tensor(tensor) => {
                let layout = tensor.layout();
                let strides = Dims::new(argument, layout.stride())?.scaled(dtype.bytes());
                let place = Place { offset: layout.start_offset() * dtype.bytes(), strides };
                Resolved { dims, dtype, axis, memory: Memory::Tensor(tensor), pieces: [(place, tokens), none] }
            }
            Source::View(view) => {
                view.check()?;
                let memory = Memory::Tensor(&view.buffer.tensor);
                let mut pieces = [none; 2];
                if view.sequence_axis().is_none_or(|sequence| sequence == axis) || view.runs().single().is_some() {
                    for (slot, piece) in pieces.iter_mut().zip(view.pieces()) {
                        *slot = (piece.place, piece.dims[axis]);
                    }
                    Resolved { dims, dtype, axis, memory, pieces }
                } else {
                    let staged = view.to_bytes()?;
                    let place = Place { offset: 0, strides: dims.contiguous_strides().scaled(dtype.bytes()) };
                    Resolved { dims, dtype, axis, memory: Memory::Staged(staged), pieces: [(place, tokens), none] }
                }
            }
        };
        count("tokens", resolved.dims[axis] as u64)?;
        Ok(resolved)
    }
}

impl<'a> Source<'a> {
    /// One token's elements' bytes in order: borrowed when they lie so in the caller's memory. A range counts along the
    /// sequence of four dimensions, else along the first.
    pub(crate) fn row_major(&self, argument: &'static str) -> Result<(DType, Cow<'a, [u8]>)> {
        Ok(match self {
            Source::Host(host) if host.range.is_none() && host.strides == host.dims.contiguous_strides() => {
                (host.dtype, Cow::Borrowed(host.bytes))
            }
            Source::View(view) => (view.dtype(), Cow::Owned(view.to_bytes()?)),
            _ => {
                let axis = if self.rank() == 4 { SEQUENCE } else { 0 };
                let resolved = self.resolve(argument, axis)?;
                (resolved.dtype, Cow::Owned(resolved.to_row_major()?))
            }
        })
    }

    fn rank(&self) -> usize {
        match self {
            Source::Host(host) => host.dims.len(),
            Source::View(view) => view.dims().len(),
            Source::Tensor(tensor) => tensor.rank(),
        }
    }
}

impl<'a> Resolved<'a> {
    /// How many tokens.
    pub fn tokens(&self) -> u32 {
        self.dims[self.axis] as u32
    }

    /// The buffer shape that these tokens fit in.
    pub fn row_shape(&self, parts: usize) -> RowShape {
        RowShape { parts, dims: self.dims.with(self.axis, 1), axis: self.axis, dtype: self.dtype }
    }

    /// Refuses tokens that do not fit in buffers of `shape`.
    pub fn check(&self, argument: &'static str, shape: &RowShape) -> Result<()> {
        if self.dims.len() != shape.dims.len() || self.dims.with(self.axis, 1) != shape.dims.with(shape.axis, 1) {
            let sizes: Vec<String> = (0..shape.dims.len())
                .map(|axis| if axis == shape.axis { "n".to_owned() } else { shape.dims[axis].to_string() })
                .collect();
            let expected = format!("[{}]", sizes.join(", "));
            return Err(Error::ShapeMismatch { argument, value: self.dims.to_vec(), expected });
        }
        if self.dtype != shape.dtype {
            return Err(Error::DtypeMismatch {
                argument,
                value: self.dtype.to_string(),
                expected: shape.dtype.to_string(),
            });
        }
        Ok(())
    }

    /// Copies its tokens to memory of its own when they lie in `buffer`, which is about to be written.
    pub fn stage(&mut self, buffer: &Buffer) -> Result<()> {
        let shared = match &self.memory {
            Memory::Tensor(tensor) => buffer.shares_storage(tensor)?,
            Memory::Host(bytes) => buffer.overlaps(bytes.as_ptr(), bytes.len()),
            Memory::Staged(_) => false,
        };
        if shared {
            let staged = self.to_row_major()?;
            let place = self.row_major_place();
            self.memory = Memory::Staged(staged);
            self.pieces = [(place, self.tokens() as usize), (place, 0)];
        }
        Ok(())
    }

    /// A copy of its tokens without gaps.
    fn to_row_major(&self) -> Result<Vec<u8>> {
        let bytes = self.dims.elements().and_then(|elements| elements.checked_mul(self.dtype.bytes()));
        let mut out = zeroed_bytes(bytes.ok_or_else(|| Budget::process().refusal(u64::MAX))?)?;
        let place = self.row_major_place();
        let mut copy = |bytes: &[u8]| self.copy_from(bytes, 0, self.tokens(), &mut out, place);
        match &self.memory {
            Memory::Host(bytes) => copy(bytes),
            Memory::Staged(bytes) => copy(bytes),
            Memory::Tensor(tensor) => inspect(tensor, |bytes| {
                copy(bytes);
                Ok(())
            })?,
        }
        Ok(out)
    }

    fn row_major_place(&self) -> Place {
        Place { offset: 0, strides: self.dims.contiguous_strides().scaled(self.dtype.bytes()) }
    }

    /// The candle tensor to read from, if it is one.
    pub fn tensor(&self) -> Option<&'a Tensor> {
        match self.memory {
            Memory::Tensor(tensor) => Some(tensor),
            _ => None,
        }
    }

    /// The bytes to read from: its own, or those of the next candle tensor of an operation.
    pub fn bytes<'b>(&'b self, tensors: &mut impl Iterator<Item = &'b [u8]>) -> &'b [u8] {
        match &self.memory {
            Memory::Host(bytes) => bytes,
            Memory::Staged(bytes) => bytes,
            Memory::Tensor(_) => tensors.next().unwrap_or(&[]),
        }
    }

    /// Copies `len` tokens from `token` on, found in `bytes`, to `place` in `target`.
    pub fn copy_from(&self, bytes: &[u8], token: u32, len: u32, target: &mut [u8], place: Place) {
        let (mut skip, mut left, mut to) = (token as usize, len as usize, place);
        for (from, tokens) in self.pieces {
            let taken = left.min(tokens.saturating_sub(skip));
            if taken > 0 {
                let from = Place { offset: from.offset + skip * from.strides[self.axis], ..from };
                copy(&self.dims.with(self.axis, taken), self.dtype.bytes(), target, to, bytes, from);
                to.offset += taken * to.strides[self.axis];
                left -= taken;
            }
            skip = skip.saturating_sub(tokens);
        }
    }
}

fn tensor_dtype(argument: &'static str, tensor: &Tensor) -> Result<DType> {
    if !tensor.device().is_cpu() {
        let value = crate::device::device_name(tensor.device()).to_owned();
        return Err(Error::DeviceMismatch { argument, value, expected: "cpu".to_owned() });
    }
    DType::of(tensor.dtype()).ok_or_else(|| Error::DtypeMismatch {
        argument,
        value: format!("{:?}", tensor.dtype()).to_lowercase(),
        expected: "f32, f16, bf16 or u8".to_owned(),
    })
}
