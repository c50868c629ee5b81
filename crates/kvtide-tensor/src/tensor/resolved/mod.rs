//! New tokens whose strides are known: one run of memory, or the two of a view.

mod place;

use std::borrow::Cow;

use candle_core::Tensor;
use kvtide_core::{DetailValue, count};
use kvtide_cuda::Span;

use crate::base::dims::Dims;
use crate::base::dtype::{DType, tensor_dtype};
use crate::base::error::{Error, Result};
use crate::base::region::Place;
use crate::kernels::portable::HostOrTensor;
use crate::kernels::{Stretches, copy};
use crate::tensor::buffer::RowShape;
use crate::tensor::host::HostTensor;
use crate::tensor::source::Source;
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
    /// Where the tokens lie, and how many: one run, or the two of a view.
    runs: [SourceRun; 2],
    /// Bytes from a stretch to the next, when it is cut in stretches as a buffer is.
    stretch: Option<usize>,
}

/// Neighbouring tokens: the byte of the first one, and how many.
#[derive(Clone, Copy, Default)]
struct SourceRun {
    offset: usize,
    tokens: usize,
}

/// Tokens taken from a run.
pub(crate) struct TakenRun {
    /// Which run.
    index: usize,
    /// Tokens of the run before them.
    skip: usize,
    /// Their first byte.
    pub offset: usize,
    /// Tokens taken before them.
    pub done: usize,
    /// How many.
    pub tokens: usize,
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
        let run = SourceRun { offset: start * strides[axis], tokens: end - start };
        let (dims, memory) = (dims.with(axis, end - start), Memory::Host(host.bytes()));
        Ok(Resolved::laid_out(argument, dims, host.dtype(), axis, memory, strides, [run, SourceRun::default()]))
    }

    #[inline]
    fn of_tensor(tensor: &'a Tensor, argument: &'static str, axis: usize) -> Result<Self> {
        let layout = tensor.layout();
        let (dims, dtype) = (Dims::shape(argument, layout.dims())?, tensor_dtype(argument, tensor)?);
        check_axis(argument, &dims, axis)?;
        let strides = Dims::new(argument, layout.stride())?.scaled(dtype.bytes());
        count("tokens", dims[axis] as u64)?;
        let run = SourceRun { offset: layout.start_offset() * dtype.bytes(), tokens: dims[axis] };
        let memory = Memory::Tensor(tensor);
        Ok(Resolved::laid_out(argument, dims, dtype, axis, memory, strides, [run, SourceRun::default()]))
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
        let mut runs = [SourceRun::default(); 2];
        let mut strides = dims.zeros();
        for (run, shown) in runs.iter_mut().zip(view.boxes()) {
            *run = SourceRun { offset: shown.place.offset, tokens: shown.dims[axis] };
            strides = shown.place.strides;
        }
        Ok(Resolved::laid_out(argument, dims, dtype, axis, Memory::View(view), strides, runs))
    }

    fn laid_out(
        argument: &'static str,
        dims: Dims,
        dtype: DType,
        axis: usize,
        memory: Memory<'a>,
        strides: Dims,
        runs: [SourceRun; 2],
    ) -> Self {
        let stretch = Stretches::stride(&dims, &strides, axis, dtype.bytes());
        Resolved { argument, dims, dtype, axis, memory, strides, runs, stretch }
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

    /// Bytes from an element to the next for each axis; the first byte and the tokens of each run.
    pub fn layout(&self) -> (Dims, [(usize, usize); 2]) {
        (self.strides, self.runs.map(|run| (run.offset, run.tokens)))
    }

    /// Bytes from a stretch to the next, when it is cut in stretches as a buffer is.
    pub fn stretch(&self) -> Option<usize> {
        self.stretch
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

    /// Copies `len` tokens from `token` on, found in `bytes`, to `to` in `target`.
    pub fn copy_strided(&self, bytes: &[u8], token: u32, len: u32, target: &mut [u8], to: Place) {
        for TakenRun { offset, done, tokens, .. } in self.taken(token, len) {
            let to = Place { offset: to.offset + done * to.strides[self.axis], ..to };
            let from = Place { offset, strides: self.strides };
            copy(&self.dims.with(self.axis, tokens), self.dtype.bytes(), target, to, bytes, from);
        }
    }

    /// What lies of the tokens `token .. token + len` in each run, where anything does.
    #[inline]
    pub fn taken(&self, token: u32, len: u32) -> impl Iterator<Item = TakenRun> {
        let (mut skip, mut done, stride) = (token as usize, 0, self.strides[self.axis]);
        self.runs.into_iter().enumerate().filter_map(move |(index, run)| {
            let tokens = (len as usize - done).min(run.tokens.saturating_sub(skip));
            let taken = TakenRun { index, skip, offset: run.offset + skip * stride, done, tokens };
            done += tokens;
            skip = skip.saturating_sub(run.tokens);
            (tokens > 0).then_some(taken)
        })
    }

    /// Tokens of a run, on the host or as a tensor.
    pub fn host_or_tensor(&self, taken: &TakenRun) -> Result<HostOrTensor<'_>> {
        let TakenRun { index, skip, offset, tokens, .. } = *taken;
        let part = |tensor: &Tensor| Ok(HostOrTensor::Tensor(tensor.narrow(self.axis, skip, tokens)?));
        let (dims, dtype) = (self.dims.with(self.axis, tokens), self.dtype);
        let from = Place { offset, strides: self.strides };
        match &self.memory {
            Memory::Host(bytes) => Ok(HostOrTensor::Host { bytes, dims, dtype, from }),
            Memory::Staged(bytes) => Ok(HostOrTensor::Host { bytes, dims, dtype, from }),
            Memory::Tensor(tensor) => part(tensor),
            Memory::Brought(tensor) => part(tensor),
            Memory::View(view) => match view.tensors().nth(index) {
                Some(tensor) => part(&tensor?),
                None => unreachable!("a source has the runs of its view"),
            },
        }
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
            Source::Host(host) if host.is_row_major() => (host.dtype(), Cow::Borrowed(host.bytes())),
            Source::View(view) => (view.dtype(), Cow::Owned(view.to_bytes()?)),
            _ => {
                let resolved = Resolved::new(self, argument, self.axis())?;
                (resolved.dtype, Cow::Owned(resolved.to_row_major()?))
            }
        })
    }
}

fn check_axis(argument: &'static str, dims: &Dims, axis: usize) -> Result<()> {
    if dims.len() > axis {
        return Ok(());
    }
    let expected = format!("more than {axis} dimensions, the sequence along dimension {axis}");
    Err(Error::ShapeMismatch { argument, value: dims.to_vec(), expected })
}
