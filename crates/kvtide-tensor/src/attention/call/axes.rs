//! The axes of queries, keys and values, and sources as rows of floats.

use crate::base::dims::Dims;
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::kernels::tile::Elements;
use crate::tensor::resolved::Resolved;
use crate::tensor::source::Source;

/// The axes of `[batch, heads, tokens, dim]`, or of `[tokens, heads, dim]`.
#[derive(Clone, Copy)]
pub(in crate::attention) struct Axes {
    pub tokens: usize,
    pub heads: usize,
    pub rank: usize,
}

impl Axes {
    pub const BATCHED: Axes = Axes { tokens: 2, heads: 1, rank: 4 };
    pub const RAGGED: Axes = Axes { tokens: 0, heads: 1, rank: 3 };

    /// True for `[tokens, heads, dim]`.
    pub fn are_ragged(self) -> bool {
        self.rank == Axes::RAGGED.rank
    }
}

/// A source as rows of floats, each without gaps; what lies otherwise is copied first.
pub(in crate::attention) fn resolve<'a>(
    source: &Source<'a>,
    argument: &'static str,
    axes: Axes,
) -> Result<Resolved<'a>> {
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

pub(in crate::attention) fn check_rank(argument: &'static str, dims: &Dims, axes: Axes) -> Result<()> {
    if dims.len() == axes.rank {
        return Ok(());
    }
    let expected = if axes.rank == 4 { "[batch, heads, n, headDim]" } else { "[tokens, heads, headDim]" };
    Err(Error::ShapeMismatch { argument, value: dims.to_vec(), expected: expected.to_owned() })
}

/// The elements of rows of this dtype.
pub(in crate::attention) fn elements(dtype: DType) -> Result<Elements> {
    match dtype {
        DType::F32 => Ok(Elements::F32),
        DType::F16 => Ok(Elements::F16),
        DType::BF16 => Ok(Elements::Bf16),
        DType::U8 => Err(Error::argument("dtype", "u8", "f32, f16 or bf16")),
    }
}
