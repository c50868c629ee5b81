//! New tokens whose strides are known: one piece of memory, or the two runs of a view.

use candle_core::Tensor;
use kvtide_core::count;

use crate::buffer::{Buffer, RowShape};
use crate::dims::Dims;
use crate::dtype::DType;
use crate::edit::inspect;
use crate::error::{Error, Result};
use crate::kernels::{Place, copy};
use crate::memory::Budget;
use crate::source::{HostTensor, Source};
use crate::view::View;
use crate::zeroed::zeroed_bytes;

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

impl<'a> Resolved<'a> {
    /// A source, looked at as tokens along `axis`.
    pub fn new(source: &Source<'a>, argument: &'static str, axis: usize) -> Result<Self> {
        let resolved = match source {
            Source::Host(host) => Resolved::of_host(host, argument, axis)?,
            Source::View(view) => Resolved::of_view(view, argument, axis)?,
            Source::Tensor(tensor) => Resolved::of_tensor(tensor, argument, axis)?,
        };
        count("tokens", resolved.dims[axis] as u64)?;
        Ok(resolved)
    }

    fn of_host(host: &HostTensor<'a>, argument: &'static str, axis: usize) -> Result<Self> {
        let (dims, dtype) = (host.dims(), host.dtype());
        check_axis(argument, &dims, axis)?;
        let tokens = dims[axis];
        let (start, end) = host.range().unwrap_or((0, tokens));
        if start > end || end > tokens {
            let expected = format!("start <= end <= {tokens}, the tokens in its data");
            return Err(Error::argument("range", format!("[{start}, {end}]"), expected));
        }
        let place = host.place();
        let place = Place { offset: start * place.strides[axis], ..place };
        let dims = dims.with(axis, end - start);
        Ok(Resolved { dims, dtype, axis, memory: Memory::Host(host.bytes()), pieces: one_piece(place, end - start) })
    }

    fn of_tensor(tensor: &'a Tensor, argument: &'static str, axis: usize) -> Result<Self> {
        let (dims, dtype) = (Dims::shape(argument, tensor.dims())?, tensor_dtype(argument, tensor)?);
        check_axis(argument, &dims, axis)?;
        let layout = tensor.layout();
        let strides = Dims::new(argument, layout.stride())?.scaled(dtype.bytes());
        let place = Place { offset: layout.start_offset() * dtype.bytes(), strides };
        Ok(Resolved { dims, dtype, axis, memory: Memory::Tensor(tensor), pieces: one_piece(place, dims[axis]) })
    }

    fn of_view(view: &'a View, argument: &'static str, axis: usize) -> Result<Self> {
        let (dims, dtype) = (view.dims(), view.dtype());
        check_axis(argument, &dims, axis)?;
        view.check()?;
        // Two runs along another axis than the one that is asked for are put together first.
        if view.runs().single().is_none() && view.sequence_axis().is_some_and(|sequence| sequence != axis) {
            let place = Place { offset: 0, strides: dims.contiguous_strides().scaled(dtype.bytes()) };
            let memory = Memory::Staged(view.to_bytes()?);
            return Ok(Resolved { dims, dtype, axis, memory, pieces: one_piece(place, dims[axis]) });
        }
        let mut pieces = one_piece(Place { offset: 0, strides: dims.zeros() }, 0);
        for (slot, piece) in pieces.iter_mut().zip(view.pieces()) {
            *slot = (piece.place, piece.dims[axis]);
        }
        Ok(Resolved { dims, dtype, axis, memory: Memory::Tensor(&view.buffer.tensor), pieces })
    }

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
    pub fn to_row_major(&self) -> Result<Vec<u8>> {
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

/// Tokens that lie in one piece.
fn one_piece(place: Place, tokens: usize) -> [(Place, usize); 2] {
    [(place, tokens), (place, 0)]
}

fn check_axis(argument: &'static str, dims: &Dims, axis: usize) -> Result<()> {
    if dims.len() > axis {
        return Ok(());
    }
    let expected = format!("more than {axis} dimensions, the sequence along dimension {axis}");
    Err(Error::ShapeMismatch { argument, value: dims.to_vec(), expected })
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
