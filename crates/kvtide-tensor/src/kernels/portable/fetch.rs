//! Gives the elements of a tensor back to the host.

use candle_core::Tensor;

use super::boxes::{CHUNK_BYTES, boxes};
use super::put::narrowed;
use crate::base::dims::Dims;
use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::base::region::Place;
use crate::kernels::copy;

/// Copies the elements of `source` to `to` in `target`.
pub(crate) fn fetch(source: &Tensor, dtype: DType, target: &mut [u8], to: Place) -> Result<()> {
    let element = dtype.bytes();
    for part in boxes(Dims::new("view", source.dims())?, CHUNK_BYTES / element) {
        let from = Place { offset: 0, strides: part.dims.contiguous_strides().scaled(element) };
        let bytes = dtype.download(&narrowed(source, &part)?.contiguous()?)?;
        copy(&part.dims, element, target, to.at(&part.start), &bytes, from);
    }
    Ok(())
}
