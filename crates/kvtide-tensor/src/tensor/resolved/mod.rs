//! New tokens whose strides are known: one piece of memory, or the two runs of a view.

mod place;

use candle_core::Tensor;
use kvtide_core::{DetailValue, count};
use kvtide_cuda::Span;

use crate::base::dims::Dims;
use crate::base::dtype::{DType, tensor_dtype};
use crate::base::error::{Error, Result};
use crate::kernels::{Place, Stretches, Strided, copy, rows};
use crate::tensor::buffer::{Buffer, RowShape};
use crate::tensor::source::{HostTensor, Source};
use crate::tensor::view::View;

/// A source whose strides and tokens are known.
pub(crate) struct Resolved<'a> {
    argument: &'static str,
    pub dims: Dims,
    pub dtype: DType,
    axis: usize,
    memory: Memory<'a>,
    /// Bytes from an element to the next, for each axis.
    strides: Dims,
    /// Where the tokens lie, and how many: one piece, or the two runs of a view.
    pieces: [Piece; 2],
    /// Bytes from a stretch to the next, when it is cut in stretches as a buffer is.
    stretch: Option<usize>,
}

/// Neighbouring tokens: the byte of the first one, and how many.
#[derive(Clone, Copy, Default)]
struct Piece {
    offset: usize,
    tokens: usize,
}

/// A part of a piece.
struct Taken {
    /// Which piece.
    piece: usize,
    /// Tokens of the piece before it.
    skip: usize,
    /// Its first byte.
    offset: usize,
    /// Tokens taken before it.
    done: usize,
    /// Tokens in it.
    tokens: usize,
}

enum Memory<'a> {
    Host(&'a [u8]),
    Tensor(&'a Tensor),
    View(&'a View),
    Staged(Vec<u8>),
    /// A copy on the device that it goes to.
    Brought(Tensor),
}

impl<'a> Resolved<'a> {
    /// A source, looked at as tokens along `axis`.
    #[inline]
    pub fn new(source: &Source<'a>, argument: &'static str, axis: usize) -> Result<Self> {
        match source {
            Source::Host(host) => Resolved::of_host(host, argument, axis),
            Source::View(view) => Resolved::of_view(view, argument, axis),
            Source::Tensor(tensor) => Resolved::of_tensor(tensor, argument, axis),
        }
    }

    #[inline]
    fn of_host(host: &HostTensor<'a>, argument: &'static str, axis: usize) -> Result<Self> {
        let (dims, strides) = (host.dims(), host.byte_strides());
        check_axis(argument, &dims, axis)?;
        let tokens = dims[axis];
        let (start, end) = host.range().unwrap_or((0, tokens));
        if start > end || end > tokens {
            let expected = format!("start <= end <= {tokens}, the tokens in its data");
            return Err(Error::argument("range", DetailValue::Numbers(vec![start as u64, end as u64]), expected));
        }
        count("tokens", (end - start) as u64)?;
        let piece = Piece { offset: start * strides[axis], tokens: end - start };
        let dims = dims.with(axis, end - start);
        Ok(Resolved::laid_out(
            argument,
            dims,
            host.dtype(),
            axis,
            Memory::Host(host.bytes()),
            strides,
            [piece, Piece::default()],
        ))
    }

    #[inline]
    fn of_tensor(tensor: &'a Tensor, argument: &'static str, axis: usize) -> Result<Self> {
        let layout = tensor.layout();
        let (dims, dtype) = (Dims::shape(argument, layout.dims())?, tensor_dtype(argument, tensor)?);
        check_axis(argument, &dims, axis)?;
        let strides = Dims::new(argument, layout.stride())?.scaled(dtype.bytes());
        count("tokens", dims[axis] as u64)?;
        let piece = Piece { offset: layout.start_offset() * dtype.bytes(), tokens: dims[axis] };
        Ok(Resolved::laid_out(argument, dims, dtype, axis, Memory::Tensor(tensor), strides, [piece, Piece::default()]))
    }

    fn of_view(view: &'a View, argument: &'static str, axis: usize) -> Result<Self> {
        let (dims, dtype) = (view.dims(), view.dtype());
        check_axis(argument, &dims, axis)?;
        count("tokens", dims[axis] as u64)?;
        view.check()?;
        // Two runs along another axis than the one that is asked for are put together first.
        if view.runs().single().is_none() && view.sequence_axis().is_some_and(|sequence| sequence != axis) {
            return Ok(Resolved::without_gaps(argument, dims, dtype, axis, view.to_bytes()?));
        }
        let mut pieces = [Piece::default(); 2];
        let mut strides = dims.zeros();
        for (slot, piece) in pieces.iter_mut().zip(view.pieces()) {
            *slot = Piece { offset: piece.place.offset, tokens: piece.dims[axis] };
            strides = piece.place.strides;
        }
        Ok(Resolved::laid_out(argument, dims, dtype, axis, Memory::View(view), strides, pieces))
    }

    fn laid_out(
        argument: &'static str,
        dims: Dims,
        dtype: DType,
        axis: usize,
        memory: Memory<'a>,
        strides: Dims,
        pieces: [Piece; 2],
    ) -> Self {
        let stretch = Stretches::stride(&dims, &strides, axis, dtype.bytes());
        Resolved { argument, dims, dtype, axis, memory, strides, pieces, stretch }
    }

    /// The axis of the tokens.
    pub fn axis(&self) -> usize {
        self.axis
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
        if !self.dims.agrees(&shape.dims, self.axis) {
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

    /// Bytes from an element to the next for each axis; the first byte and the tokens of each piece.
    pub fn layout(&self) -> (Dims, [(usize, usize); 2]) {
        (self.strides, self.pieces.map(|piece| (piece.offset, piece.tokens)))
    }

    /// The candle tensor to read from, if it is one.
    pub fn tensor(&self) -> Option<&Tensor> {
        match &self.memory {
            Memory::Tensor(tensor) => Some(tensor),
            Memory::View(view) => Some(&view.buffer.tensor),
            Memory::Brought(tensor) => Some(tensor),
            Memory::Host(_) | Memory::Staged(_) => None,
        }
    }

    /// The bytes to read from: its own, or those of the next candle tensor of an operation.
    pub fn bytes<'b>(&'b self, tensors: &mut impl Iterator<Item = &'b [u8]>) -> &'b [u8] {
        self.host_bytes().unwrap_or_else(|| tensors.next().unwrap_or(&[]))
    }

    /// The span to read from: of its own bytes, or the next candle tensor of an operation.
    pub fn span<'b>(&'b self, tensors: &mut impl Iterator<Item = Span<'b>>) -> Span<'b> {
        self.host_bytes().map(Span::of).or_else(|| tensors.next()).unwrap_or(Span::of(&[]))
    }

    /// Bytes from an element to the next, for each axis.
    pub fn strides(&self) -> &Dims {
        &self.strides
    }

    /// Copies `len` tokens from `token` on, found in `bytes`, to `slot` of one part of `buffer`, whose bytes are `target`.
    pub fn write_to(
        &self,
        bytes: &[u8],
        token: u32,
        len: u32,
        target: &mut [u8],
        buffer: &Buffer,
        part: usize,
        slot: u32,
    ) {
        let Some(stride) = self.stretch else {
            return self.copy_strided(bytes, token, len, target, buffer.place(part, slot));
        };
        let row = buffer.row_bytes();
        self.each_taken(token, len, |Taken { offset, done, tokens, .. }| {
            let to = buffer.stretches(part, slot + done as u32);
            rows(buffer.stretch_count(), tokens * row, target, to, bytes, Stretches { offset, stride });
        });
    }

    /// Copies `len` tokens from `token` on, found in `bytes`, to `to` in `target`.
    pub fn copy_strided(&self, bytes: &[u8], token: u32, len: u32, target: &mut [u8], to: Place) {
        self.each_taken(token, len, |Taken { offset, done, tokens, .. }| {
            let to = Place { offset: to.offset + done * to.strides[self.axis], ..to };
            let from = Place { offset, strides: self.strides };
            copy(&self.dims.with(self.axis, tokens), self.dtype.bytes(), target, to, bytes, from);
        });
    }

    /// Calls `work` with the tokens `token .. token + len`, piece by piece: how many came before, and where they are.
    pub fn each_strided(
        &self,
        token: u32,
        len: u32,
        mut work: impl FnMut(usize, Strided<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut outcome = Ok(());
        self.each_taken(token, len, |taken| {
            if outcome.is_ok() {
                outcome = self.strided(&taken).and_then(|tokens| work(taken.done, tokens));
            }
        });
        outcome
    }

    /// Calls `work` with what lies of the tokens `token .. token + len` in each piece: how many came before, its first byte, and how
    /// many they are.
    pub fn each_place(&self, token: u32, len: u32, mut work: impl FnMut(usize, usize, usize)) {
        self.each_taken(token, len, |Taken { offset, done, tokens, .. }| work(done, offset, tokens));
    }

    fn strided(&self, taken: &Taken) -> Result<Strided<'_>> {
        let Taken { piece, skip, offset, tokens, .. } = *taken;
        let part = |tensor: &Tensor| -> Result<_> { Ok(Strided::Tensor(tensor.narrow(self.axis, skip, tokens)?)) };
        let (dims, dtype) = (self.dims.with(self.axis, tokens), self.dtype);
        let from = Place { offset, strides: self.strides };
        match &self.memory {
            Memory::Host(bytes) => Ok(Strided::Host { bytes, dims, dtype, from }),
            Memory::Staged(bytes) => Ok(Strided::Host { bytes, dims, dtype, from }),
            Memory::Tensor(tensor) => part(tensor),
            Memory::Brought(tensor) => part(tensor),
            Memory::View(view) => match view.tensors().nth(piece) {
                Some(tensor) => part(&tensor?),
                None => unreachable!("a source has the pieces of its view"),
            },
        }
    }

    /// Calls `work` with what lies of the tokens `token .. token + len` in each piece, where anything does.
    fn each_taken(&self, token: u32, len: u32, mut work: impl FnMut(Taken)) {
        let (mut skip, mut done) = (token as usize, 0);
        for (piece, own) in self.pieces.iter().enumerate() {
            let tokens = (len as usize - done).min(own.tokens.saturating_sub(skip));
            if tokens > 0 {
                work(Taken { piece, skip, offset: own.offset + skip * self.strides[self.axis], done, tokens });
                done += tokens;
            }
            skip = skip.saturating_sub(own.tokens);
        }
    }
}

fn check_axis(argument: &'static str, dims: &Dims, axis: usize) -> Result<()> {
    if dims.len() > axis {
        return Ok(());
    }
    let expected = format!("more than {axis} dimensions, the sequence along dimension {axis}");
    Err(Error::ShapeMismatch { argument, value: dims.to_vec(), expected })
}
