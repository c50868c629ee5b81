//! New tokens for pages, read in place.
//!
//! ```text
//! one layer    [heads, tokens, dim], or with a 1 before it
//! all layers   [layers, heads, tokens, dim]
//! one token    layer and tokens 1, heads * dim elements in any shape
//! ```
//!
//! Tensors with a contiguous last dimension, and host tensors in either order of axes, are read in place. Other tensors, and
//! views, are copied first: on the device if they are on one, else row by row.

use std::borrow::Cow;

use candle_core::{Device, Tensor};

use crate::base::dims::Dims;
use crate::base::dtype::{DType, from_f32, to_f32};
use crate::base::error::{Error, Result};
use crate::base::zeroed::zeroed_bytes;
use crate::device::device_name;
use crate::device::form::is_seen;
use crate::kernels::pages::RowPlaces;
use crate::tensor::source::{Resolved, Source};

/// The expected shape and dtype of a call's rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expected {
    /// The number of layers; if `None`, one, which may be left out of the shape.
    pub layers: Option<usize>,
    pub heads: usize,
    pub dim: usize,
    pub dtype: DType,
}

/// K or V of a call.
#[derive(Debug)]
pub(crate) struct TokenRows<'a> {
    pub rows: RowPlaces,
    /// The number of tokens of each layer.
    pub tokens: u32,
    pub dtype: DType,
    memory: Memory<'a>,
}

#[derive(Debug)]
enum Memory<'a> {
    Bytes(Cow<'a, [u8]>),
    Tensor(&'a Tensor),
    /// A copy on a device.
    Made(Tensor),
}

impl<'a> TokenRows<'a> {
    /// Resolves a source as rows, or fails.
    pub fn new(source: &Source<'a>, argument: &'static str, expected: Expected) -> Result<Self> {
        let resolved = expected.look(source, argument)?;
        let (dims, rank) = (resolved.dims, resolved.dims.len());
        let (memory, offset, strides) = match in_place(source, argument, &dims, expected)? {
            Some(found) => found,
            None => {
                let strides = dims.contiguous_strides().scaled(expected.dtype.bytes());
                match source {
                    // Device memory is copied on the device.
                    Source::View(view) if !is_seen(view.device()) => (Memory::Made(view.to_tensor()?), 0, strides),
                    Source::Tensor(tensor) if !is_seen(tensor.device()) => {
                        (Memory::Made(tensor.force_contiguous()?), 0, strides)
                    }
                    _ => (Memory::Bytes(Cow::Owned(resolved.to_row_major()?)), 0, strides),
                }
            }
        };
        let layer = if rank == 4 { strides[0] } else { 0 };
        let row = expected.dim * expected.dtype.bytes();
        let rows = RowPlaces { offset, layer, head: strides[rank - 3], token: strides[rank - 2], row };
        Ok(TokenRows { rows, tokens: resolved.tokens(), dtype: expected.dtype, memory })
    }

    /// Checks everything that [`TokenRows::new`] and [`TokenRows::check_device`] check, without copying; returns the number
    /// of tokens.
    pub fn check(source: &Source<'a>, argument: &'static str, expected: Expected, device: &Device) -> Result<u32> {
        let resolved = expected.look(source, argument)?;
        if let Some((Memory::Tensor(tensor), ..)) = in_place(source, argument, &resolved.dims, expected)? {
            check_device(tensor, argument, device)?;
        }
        Ok(resolved.tokens())
    }

    /// One token of one layer, in any shape.
    pub fn one(source: &Source<'a>, argument: &'static str, expected: Expected) -> Result<Self> {
        let (dtype, bytes) = source.row_major(argument)?;
        expected.check_dtype(argument, dtype)?;
        let (elements, actual) = (expected.heads * expected.dim, bytes.len() / dtype.bytes());
        if actual != elements {
            return Err(Error::DimMismatch { argument, actual: actual as u64, expected: elements as u64 });
        }
        let row = expected.dim * dtype.bytes();
        Ok(TokenRows {
            rows: RowPlaces { offset: 0, layer: 0, head: row, token: row, row },
            tokens: 1,
            dtype,
            memory: Memory::Bytes(bytes),
        })
    }

    /// Converts the rows to elements of another float type, in memory of their own: rounded to nearest, ties to even, and to
    /// infinity if too large. Rows that already have the type stay as they are. O(bytes of the rows), on their device.
    pub fn into_dtype(self, dtype: DType, layers: usize, heads: usize) -> Result<Self> {
        if dtype == self.dtype {
            return Ok(self);
        }
        let (tokens, dim) = (self.tokens as usize, self.rows.row / self.dtype.bytes());
        let row = dim * dtype.bytes();
        let converted = |tensor: &Tensor| -> Result<Memory<'a>> {
            Ok(Memory::Made(tensor.to_dtype(dtype.candle())?.contiguous()?))
        };
        let memory = match &self.memory {
            Memory::Tensor(tensor) => converted(tensor)?,
            Memory::Made(tensor) => converted(tensor)?,
            Memory::Bytes(bytes) => {
                let mut out = zeroed_bytes(layers * heads * tokens * row)?;
                let mut floats = vec![0f32; dim];
                for (place, out) in out.chunks_exact_mut(row.max(1)).enumerate() {
                    let (layer, rest) = (place / (heads * tokens), place % (heads * tokens));
                    let from = self.rows.at(layer, rest / tokens, rest % tokens);
                    to_f32(self.dtype, &bytes[from..from + self.rows.row], &mut floats);
                    from_f32(dtype, &floats, out);
                }
                Memory::Bytes(Cow::Owned(out))
            }
        };
        let rows = RowPlaces { offset: 0, layer: heads * tokens * row, head: tokens * row, token: row, row };
        Ok(TokenRows { rows, dtype, memory, ..self })
    }

    /// The candle tensor to read from, if there is one.
    pub fn tensor(&self) -> Option<&Tensor> {
        match &self.memory {
            Memory::Tensor(tensor) => Some(tensor),
            Memory::Made(tensor) => Some(tensor),
            Memory::Bytes(_) => None,
        }
    }

    /// Fails for a tensor on another device than the pages.
    pub fn check_device(&self, argument: &'static str, device: &Device) -> Result<()> {
        self.tensor().map_or(Ok(()), |tensor| check_device(tensor, argument, device))
    }

    /// The bytes to read from: its own, or those of the operation's next candle tensor.
    pub fn bytes<'b>(&'b self, tensors: &mut impl Iterator<Item = &'b [u8]>) -> &'b [u8] {
        match &self.memory {
            Memory::Bytes(bytes) => bytes,
            Memory::Tensor(_) | Memory::Made(_) => tensors.next().unwrap_or(&[]),
        }
    }
}

impl Expected {
    /// Resolves a source with the shape and dtype of the rows, or fails.
    fn look<'a>(&self, source: &Source<'a>, argument: &'static str) -> Result<Resolved<'a>> {
        let rank = source.rank();
        if rank != 4 && (rank != 3 || self.layers.is_some()) {
            return Err(self.mismatch(argument, &source.dims()));
        }
        let resolved = Resolved::new(source, argument, rank - 2)?;
        let dims = resolved.dims;
        let outer = if rank == 4 { dims[0] } else { 1 };
        if [outer, dims[rank - 3], dims[rank - 1]] != [self.layers.unwrap_or(1), self.heads, self.dim] {
            return Err(self.mismatch(argument, &dims));
        }
        self.check_dtype(argument, resolved.dtype)?;
        Ok(resolved)
    }

    fn check_dtype(&self, argument: &'static str, dtype: DType) -> Result<()> {
        if dtype == self.dtype {
            return Ok(());
        }
        Err(Error::DtypeMismatch { argument, value: dtype.to_string(), expected: self.dtype.to_string() })
    }

    fn mismatch(&self, argument: &'static str, dims: &[usize]) -> Error {
        let Expected { heads, dim, .. } = self;
        let expected = match self.layers {
            Some(layers) => format!("[{layers}, {heads}, n, {dim}]"),
            None => format!("[{heads}, n, {dim}] or [1, {heads}, n, {dim}]"),
        };
        Error::ShapeMismatch { argument, value: dims.to_vec(), expected }
    }
}

/// Rows that can be read in place: their memory, the byte offset of the first one, and the distances in bytes from one
/// element to the next.
fn in_place<'a>(
    source: &Source<'a>,
    argument: &'static str,
    dims: &Dims,
    expected: Expected,
) -> Result<Option<(Memory<'a>, usize, Dims)>> {
    let (memory, offset, strides) = match source {
        Source::Host(host) => {
            let strides = host.byte_strides();
            let start = host.range().map_or(0, |range| range.0);
            (Memory::Bytes(Cow::Borrowed(host.bytes())), start * strides[dims.len() - 2], strides)
        }
        Source::Tensor(tensor) => {
            let offset = tensor.layout().start_offset() * expected.dtype.bytes();
            let strides = Dims::new(argument, tensor.layout().stride())?.scaled(expected.dtype.bytes());
            (Memory::Tensor(tensor), offset, strides)
        }
        Source::View(_) => return Ok(None),
    };
    Ok(ends_without_gaps(dims, &strides, expected.dtype).then_some((memory, offset, strides)))
}

/// Fails for a tensor on another device.
pub(crate) fn check_device(tensor: &Tensor, argument: &'static str, device: &Device) -> Result<()> {
    if tensor.device().same_device(device) {
        return Ok(());
    }
    let (value, expected) = (device_name(tensor.device()), device_name(device));
    Err(Error::DeviceMismatch { argument, value, expected })
}

/// True if the elements of a row are contiguous.
fn ends_without_gaps(dims: &Dims, strides: &Dims, dtype: DType) -> bool {
    let last = dims.len() - 1;
    dims[last] <= 1 || strides[last] == dtype.bytes()
}
