//! Rows of queries, keys or values as they lie in memory: at fixed distances, in one piece or the two runs of a view.

use std::ops::Range;

use crate::base::dims::Dims;
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::kernels::tile::{Ahead, Elements, Rows};
use crate::tensor::resolved::Resolved;
use crate::tensor::source::Source;

/// The axes of `[batch, heads, tokens, dim]`, or of `[tokens, heads, dim]`.
#[derive(Clone, Copy)]
pub(super) struct Axes {
    pub tokens: usize,
    pub heads: usize,
    pub rank: usize,
}

impl Axes {
    pub const BATCHED: Axes = Axes { tokens: 2, heads: 1, rank: 4 };
    pub const RAGGED: Axes = Axes { tokens: 0, heads: 1, rank: 3 };
}

/// Rows whose memory is known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Strided<'a> {
    pub elements: Elements,
    pub bytes: &'a [u8],
    /// Bytes from one to the next; 0 for the batch of ragged rows.
    batch: usize,
    head: usize,
    token: usize,
    /// The first byte and the tokens of each piece.
    pieces: [(usize, usize); 2],
    pub dim: usize,
}

impl<'a> Strided<'a> {
    /// A source's rows in `bytes`.
    pub fn new(source: &Resolved<'_>, axes: Axes, bytes: &'a [u8]) -> Result<Self> {
        let (strides, pieces) = source.layout();
        Ok(Strided {
            elements: elements(source.dtype)?,
            bytes,
            batch: if axes.rank == 4 { strides[0] } else { 0 },
            head: strides[axes.heads],
            token: strides[axes.tokens],
            pieces,
            dim: source.dims[axes.rank - 1],
        })
    }

    /// The rows of some heads, from token `index` on, that lie at one distance.
    pub fn rows(&self, batch: usize, heads: Range<usize>, index: usize) -> Rows<'a> {
        let [(first, tokens), (second, more)] = self.pieces;
        let (offset, within, count) =
            if index < tokens { (first, index, tokens) } else { (second, index - tokens, more) };
        Rows {
            elements: self.elements,
            bytes: self.bytes,
            offset: offset + batch * self.batch + heads.start * self.head + within * self.token,
            heads: heads.len(),
            head_stride: self.head,
            stride: self.token,
            count: count - within,
            dim: self.dim,
            ahead: Ahead::STRAIGHT,
        }
    }
}

/// A source as rows of floats, each without gaps; what lies otherwise is copied first.
pub(super) fn resolve<'a>(source: &Source<'a>, argument: &'static str, axes: Axes) -> Result<Resolved<'a>> {
    let mut resolved = source.resolve(argument, axes.tokens)?;
    check_rank(argument, &resolved.dims, axes)?;
    elements(resolved.dtype).map_err(|_| Error::DtypeMismatch {
        argument,
        value: resolved.dtype.to_string(),
        expected: "f32, f16 or bf16".to_owned(),
    })?;
    let (strides, _) = resolved.layout();
    if resolved.dims[axes.rank - 1] > 1 && strides[axes.rank - 1] != resolved.dtype.bytes() {
        resolved.stage_all()?;
    }
    Ok(resolved)
}

pub(super) fn check_rank(argument: &'static str, dims: &Dims, axes: Axes) -> Result<()> {
    if dims.len() == axes.rank {
        return Ok(());
    }
    let expected = if axes.rank == 4 { "[batch, heads, n, headDim]" } else { "[tokens, heads, headDim]" };
    Err(Error::ShapeMismatch { argument, value: dims.to_vec(), expected: expected.to_owned() })
}

fn elements(dtype: DType) -> Result<Elements> {
    match dtype {
        DType::F32 => Ok(Elements::F32),
        DType::F16 => Ok(Elements::F16),
        DType::BF16 => Ok(Elements::Bf16),
        DType::U8 => Err(Error::argument("dtype", "u8", "f32, f16 or bf16")),
    }
}
