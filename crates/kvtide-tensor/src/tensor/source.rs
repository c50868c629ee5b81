//! Inputs with new tokens: a candle tensor, a view, or the caller's memory; and the same with known strides.
//!
//! The tokens are in one run of memory, or in the two runs of a view. If they are on another device than their target, or in
//! the memory that is about to be written, they are copied before they are read.

use std::borrow::Cow;

use candle_core::{Device, Tensor};
use kvtide_core::{DetailValue, count};
use kvtide_cuda::Span;

use crate::base::dims::Dims;
use crate::base::dtype::{DType, tensor_dtype};
use crate::base::error::{Error, Result};
use crate::base::memory::Budget;
use crate::base::region::Place;
use crate::base::zeroed::zeroed_bytes;
use crate::device::device_name;
use crate::device::edit::{inspect, upload};
use crate::device::form::{Form, is_seen};
use crate::kernels::portable::{HostOrTensor, fetch};
use crate::kernels::{Stretches, copy};
use crate::tensor::buffer::{Buffer, RowShape};
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
    /// Its shape.
    pub(crate) fn dims(&self) -> Vec<usize> {
        match self {
            Source::Host(host) => host.dims().to_vec(),
            Source::View(view) => view.dims().to_vec(),
            Source::Tensor(tensor) => tensor.dims().to_vec(),
        }
    }

    /// True if it reads from the `bytes` bytes at `memory`, so that writing there would change it. Always false for candle
    /// tensors, whose memory the caller cannot write.
    #[must_use]
    pub fn overlaps(&self, memory: *const u8, bytes: usize) -> bool {
        match self {
            Source::View(view) => view.overlaps(memory, bytes),
            Source::Host(host) => host.overlaps(memory, bytes),
            Source::Tensor(_) => false,
        }
    }

    /// The axis of its tokens, if the call names none: that of K and V for four dimensions, else the first.
    pub(crate) fn axis(&self) -> usize {
        match self {
            Source::Host(host) if host.is_unbatched() => 1,
            _ if self.rank() == 4 => SEQUENCE,
            _ => 0,
        }
    }

    /// The number of its tokens: the length of its range, or the last size but one.
    pub(crate) fn tokens(&self) -> usize {
        if let Source::Host(host) = self
            && let Some((start, end)) = host.range()
        {
            return end.saturating_sub(start);
        }
        let dims = self.dims();
        dims.len().checked_sub(2).map_or(0, |axis| dims[axis])
    }

    /// The number of its dimensions.
    pub(crate) fn rank(&self) -> usize {
        match self {
            Source::Host(host) => host.dims().len(),
            Source::View(view) => view.dims().len(),
            Source::Tensor(tensor) => tensor.rank(),
        }
    }
}

/// A source with known strides and tokens.
pub(crate) struct Resolved<'a> {
    argument: &'static str,
    pub dims: Dims,
    pub dtype: DType,
    axis: usize,
    memory: Memory<'a>,
    /// The distance from one element to the next in bytes, for each axis.
    strides: Dims,
    /// The offset and the number of the tokens: one run, or the two of a view.
    runs: [SourceRun; 2],
}

/// Neighbouring tokens: the byte offset of the first one, and their number.
#[derive(Clone, Copy, Default)]
struct SourceRun {
    offset: usize,
    tokens: usize,
}

/// Tokens that are taken from one run.
pub(crate) struct TakenRun {
    /// The index of the run.
    index: usize,
    /// The number of tokens before them in the run.
    skip: usize,
    /// Their first byte.
    pub offset: usize,
    /// The number of tokens taken before them.
    pub done: usize,
    /// The number of tokens.
    pub tokens: usize,
}

enum Memory<'a> {
    Host(&'a [u8]),
    Tensor(&'a Tensor),
    View(&'a View),
    Staged(Vec<u8>),
    /// A copy on the device of the target.
    Brought(Tensor),
}

impl<'a> Resolved<'a> {
    /// Resolves a source as tokens along `axis`.
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
        let runs = [run, SourceRun::default()];
        Ok(Resolved { argument, dims, dtype: host.dtype(), axis, memory, strides, runs })
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
        let runs = [run, SourceRun::default()];
        Ok(Resolved { argument, dims, dtype, axis, memory, strides, runs })
    }

    fn of_view(view: &'a View, argument: &'static str, axis: usize) -> Result<Self> {
        let (dims, dtype) = (view.dims(), view.dtype());
        check_axis(argument, &dims, axis)?;
        count("tokens", dims[axis] as u64)?;
        view.check()?;
        // If the view has two runs and another axis is requested, the runs are first joined in a copy.
        if view.runs().single().is_none() && view.sequence_axis().is_some_and(|sequence| sequence != axis) {
            return Ok(Resolved::without_gaps(argument, dims, dtype, axis, Memory::Staged(view.to_bytes()?)));
        }
        let mut runs = [SourceRun::default(); 2];
        let mut strides = dims.zeros();
        for (run, shown) in runs.iter_mut().zip(view.boxes()) {
            *run = SourceRun { offset: shown.place.offset, tokens: shown.dims[axis] };
            strides = shown.place.strides;
        }
        Ok(Resolved { argument, dims, dtype, axis, memory: Memory::View(view), strides, runs })
    }

    /// The axis of the tokens.
    pub fn axis(&self) -> usize {
        self.axis
    }

    /// The number of tokens.
    pub fn tokens(&self) -> u32 {
        self.dims[self.axis] as u32
    }

    /// The shape of a buffer for these tokens.
    pub fn row_shape(&self, parts: usize) -> RowShape {
        RowShape { parts, dims: self.dims.with(self.axis, 1), axis: self.axis, dtype: self.dtype }
    }

    /// Fails if the tokens do not fit in buffers of `shape`.
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

    /// The distances from one element to the next in bytes, for each axis; the byte offset and the number of tokens of each
    /// run.
    pub fn layout(&self) -> (Dims, [(usize, usize); 2]) {
        (self.strides, self.runs.map(|run| (run.offset, run.tokens)))
    }

    /// The distance from one stretch to the next in bytes, if the tokens form stretches as those of a buffer do.
    pub fn stretch(&self) -> Option<usize> {
        Stretches::stride(&self.dims, &self.strides, self.axis, self.dtype.bytes())
    }

    /// The candle tensor to read from, if there is one.
    pub fn tensor(&self) -> Option<&Tensor> {
        match &self.memory {
            Memory::Tensor(tensor) => Some(tensor),
            Memory::View(view) => Some(&view.buffer.tensor),
            Memory::Brought(tensor) => Some(tensor),
            Memory::Host(_) | Memory::Staged(_) => None,
        }
    }

    /// The bytes to read from: its own, or those of the operation's next candle tensor.
    pub fn bytes<'b>(&'b self, tensors: &mut impl Iterator<Item = &'b [u8]>) -> &'b [u8] {
        self.host_bytes().unwrap_or_else(|| tensors.next().unwrap_or(&[]))
    }

    /// The span to read from: its own bytes, or the operation's next candle tensor.
    pub fn span<'b>(&'b self, tensors: &mut impl Iterator<Item = Span<'b>>) -> Span<'b> {
        self.host_bytes().map(Span::of).or_else(|| tensors.next()).unwrap_or(Span::of(&[]))
    }

    /// The distance from one element to the next in bytes, for each axis.
    pub fn strides(&self) -> &Dims {
        &self.strides
    }

    /// Copies `len` tokens from `token` on, read from `bytes`, to the place `to` in `target`.
    pub fn copy_strided(&self, bytes: &[u8], token: u32, len: u32, target: &mut [u8], to: Place) {
        for TakenRun { offset, done, tokens, .. } in self.taken(token, len) {
            let to = Place { offset: to.offset + done * to.strides[self.axis], ..to };
            let from = Place { offset, strides: self.strides };
            copy(&self.dims.with(self.axis, tokens), self.dtype.bytes(), target, to, bytes, from);
        }
    }

    /// The tokens `token .. token + len`, divided by run; runs with none of them are left out.
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

    /// Tokens of a run, as host memory or as a tensor.
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

    /// Its own bytes, if it does not read from a candle tensor.
    pub fn host_bytes(&self) -> Option<&[u8]> {
        match &self.memory {
            Memory::Host(bytes) => Some(bytes),
            Memory::Staged(bytes) => Some(bytes),
            Memory::Tensor(_) | Memory::View(_) | Memory::Brought(_) => None,
        }
    }

    /// Contiguous tokens in memory of their own.
    fn without_gaps(argument: &'static str, dims: Dims, dtype: DType, axis: usize, memory: Memory<'a>) -> Self {
        let strides = dims.contiguous_strides().scaled(dtype.bytes());
        let runs = [SourceRun { offset: 0, tokens: dims[axis] }, SourceRun::default()];
        Resolved { argument, dims, dtype, axis, memory, strides, runs }
    }

    /// Copies its tokens to memory of its own if they are in `buffer`, which is about to be written.
    pub fn stage(&mut self, buffer: &Buffer) -> Result<()> {
        let shared = match &self.memory {
            Memory::Tensor(tensor) => buffer.shares_storage(tensor),
            Memory::View(view) => std::ptr::eq(buffer, &*view.buffer),
            Memory::Host(bytes) => buffer.overlaps(bytes.as_ptr(), bytes.len()),
            Memory::Staged(_) | Memory::Brought(_) => false,
        };
        if shared {
            self.stage_all()?;
        }
        Ok(())
    }

    /// Moves its tokens to `device`: copies host memory there, and fails if they are on another device.
    pub fn bring(&mut self, device: &Device) -> Result<()> {
        match self.tensor() {
            Some(tensor) if tensor.device().same_device(device) => Ok(()),
            Some(tensor) => Err(Error::DeviceMismatch {
                argument: self.argument,
                value: device_name(tensor.device()),
                expected: device_name(device),
            }),
            None if is_seen(device) => Ok(()),
            None => {
                let copy = upload(&self.to_row_major()?, self.dtype, &self.dims, device)?;
                let memory = Memory::Brought(copy);
                *self = Resolved::without_gaps(self.argument, self.dims, self.dtype, self.axis, memory);
                Ok(())
            }
        }
    }

    /// A contiguous copy of its tokens.
    pub fn to_row_major(&self) -> Result<Vec<u8>> {
        let bytes = self.dims.elements().and_then(|elements| elements.checked_mul(self.dtype.bytes()));
        let mut out = zeroed_bytes(bytes.ok_or_else(|| Budget::process().refusal(u64::MAX))?)?;
        self.read_into(&mut out)?;
        Ok(out)
    }

    fn read_into(&self, out: &mut [u8]) -> Result<()> {
        let strides = self.dims.contiguous_strides().scaled(self.dtype.bytes());
        let whole = Place { offset: 0, strides };
        let Some(tensor) = self.tensor() else {
            self.copy_strided(self.host_bytes().unwrap_or_default(), 0, self.tokens(), out, whole);
            return Ok(());
        };
        if let Form::Bytes(_) = Form::of(tensor.device())? {
            return inspect(tensor, |bytes| {
                self.copy_strided(bytes, 0, self.tokens(), out, whole);
                Ok(())
            });
        }
        for taken in self.taken(0, self.tokens()) {
            let HostOrTensor::Tensor(tokens) = self.host_or_tensor(&taken)? else {
                unreachable!("a source with a tensor is no host memory")
            };
            fetch(&tokens, self.dtype, out, Place { offset: taken.done * strides[self.axis], ..whole })?;
        }
        Ok(())
    }

    /// Copies its tokens to contiguous memory of its own.
    pub fn stage_all(&mut self) -> Result<()> {
        let memory = Memory::Staged(self.to_row_major()?);
        *self = Resolved::without_gaps(self.argument, self.dims, self.dtype, self.axis, memory);
        Ok(())
    }
}

impl<'a> Source<'a> {
    /// Resolves it as tokens along `axis`.
    pub(crate) fn resolve(&self, argument: &'static str, axis: usize) -> Result<Resolved<'a>> {
        if let Source::Host(host) = self {
            host.check_batched(argument)?;
        }
        Resolved::new(self, argument, axis)
    }

    /// The bytes of its elements in order; borrowed if they are in this order in the caller's memory. A range counts along
    /// the sequence axis of four dimensions, else along the first axis.
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

/// Resolves K and V as tokens along the sequence axis.
pub(crate) fn resolve_pair<'a>(k: &Source<'a>, v: &Source<'a>) -> Result<[Resolved<'a>; 2]> {
    Ok([k.resolve("k", SEQUENCE)?, v.resolve("v", SEQUENCE)?])
}

/// Checks that K and V have this shape `[batch, heads, n, dim]` and dtype, or, without a shape, that they agree with each
/// other, and that they have the same number of tokens.
pub(crate) fn check_pair(sources: &[Resolved<'_>; 2], shape: Option<&RowShape>) -> Result<()> {
    let [k, v] = sources;
    match shape {
        Some(shape) => {
            k.check("k", shape)?;
            v.check("v", shape)?;
        }
        None if k.dims.len() != 4 || k.dims.with(SEQUENCE, 1).contains(&0) => {
            let expected = "[batch, heads, n, dim]; all but n at least 1".to_owned();
            return Err(Error::ShapeMismatch { argument: "k", value: k.dims.to_vec(), expected });
        }
        None => v.check("v", &k.row_shape(2))?,
    }
    if k.tokens() != v.tokens() {
        let expected = format!("{:?}, the shape of k", &k.dims[..]);
        return Err(Error::ShapeMismatch { argument: "v", value: v.dims.to_vec(), expected });
    }
    Ok(())
}
