//! Moves rows from one buffer to another, or inside one, through memory of their own.

use super::boxes::{CHUNK_BYTES, SubBox, boxes};
use super::put::RowTensor;
use crate::base::dims::Dims;
use crate::base::error::Result;

/// Copies `len` elements of `element` bytes in each of `count` stretches from `from` in `source` to `to` in `target`, which may
/// be the same memory, overlapping.
pub(crate) fn relay(
    count: usize,
    len: usize,
    element: usize,
    source: &RowTensor,
    from: usize,
    target: &RowTensor,
    to: usize,
) -> Result<()> {
    let parts: Vec<SubBox> = boxes(Dims::pair(count, len), CHUNK_BYTES / element).collect();
    let move_part = |part: &SubBox| {
        let (first, start) = (part.start[0], part.start[1]);
        let rows = source.copied(first, part.dims[0], from + start, part.dims[1])?;
        target.set(first, to + start, &rows)
    };
    // Upwards, the last part goes first: what a part is written over was read before.
    if to > from { parts.iter().rev().try_for_each(move_part) } else { parts.iter().try_for_each(move_part) }
}
