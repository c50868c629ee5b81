//! K and V as the caches take them: of one shape, one dtype and one length.

use crate::base::error::{Error, Result};
use crate::tensor::buffer::RowShape;
use crate::tensor::resolved::Resolved;
use crate::tensor::source::{SEQUENCE, Source};

/// K and V as tokens along the sequence.
pub(crate) fn resolve_pair<'a>(k: &Source<'a>, v: &Source<'a>) -> Result<[Resolved<'a>; 2]> {
    Ok([k.resolve("k", SEQUENCE)?, v.resolve("v", SEQUENCE)?])
}

/// Refuses K and V that are not of this shape `[batch, heads, n, dim]` and dtype, or of one when there is none yet; and K and
/// V of different lengths.
pub(crate) fn check_pair(sources: &[Resolved<'_>; 2], shape: Option<&RowShape>) -> Result<()> {
    let [k, v] = sources;
    match shape {
        Some(shape) => {
            k.check("k", shape)?;
            v.check("v", shape)?;
        }
        None if k.dims.len() != 4 || k.dims.with(SEQUENCE, 1).contains(&0) => {
            let expected = "[batch, heads, n, dim], at least 1 but for n".to_owned();
            return Err(Error::ShapeMismatch { argument: "k", value: k.dims.to_vec(), expected });
        }
        None => v.check("v", &k.row_shape(2))?,
    }
    if k.tokens() != v.tokens() {
        let expected = format!("{:?}, as k", &k.dims[..]);
        return Err(Error::ShapeMismatch { argument: "v", value: v.dims.to_vec(), expected });
    }
    Ok(())
}
