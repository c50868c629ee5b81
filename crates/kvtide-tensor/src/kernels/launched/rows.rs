//! Rows from slot to slot.

use kvtide_core::{Run, SlotMove};
use kvtide_cuda::{BoxCopy, Move, Stream, Stretches, copy_boxes, shift};

use crate::base::error::Result;
use crate::tensor::buffer::Buffer;

/// Carries out moves inside a buffer, in order.
pub(in crate::kernels) fn move_rows(
    stream: &Stream,
    buffer: &Buffer,
    moves: impl Iterator<Item = SlotMove>,
) -> Result<()> {
    let moves: Vec<Move> = moves
        .map(|SlotMove { source, target }| Move { source: source.start, target, rows: source.len, unused: 0 })
        .collect();
    if moves.is_empty() {
        return Ok(());
    }
    let count = buffer.shape.parts * buffer.stretch_count();
    let stretches = Stretches { count, rows: buffer.slots as usize, row: buffer.row_bytes() };
    buffer.launch(&[], |memory, _| Ok(shift(stream, memory, stretches, &moves)?))
}

/// Copies the rows of `run` in one buffer to `slot` of another one.
pub(in crate::kernels) fn copy_rows(
    stream: &Stream,
    source: &Buffer,
    run: Run,
    target: &Buffer,
    slot: u32,
) -> Result<()> {
    let count = source.shape.parts * source.stretch_count();
    let (to, from) = (target.stretches(0, slot), source.stretches(0, run.start));
    let bytes = run.len as usize * source.row_bytes();
    target.launch(&[&source.tensor], |memory, sources| {
        if bytes == 0 {
            return Ok(());
        }
        let rows = BoxCopy {
            target: memory.from(to.offset),
            target_strides: &[to.stride, 1],
            source: sources[0].from(from.offset),
            source_strides: &[from.stride, 1],
            dims: &[count, bytes],
            element: 1,
        };
        Ok(copy_boxes(stream, &[rows])?)
    })
}
