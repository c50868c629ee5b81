//! Writes new tokens into a buffer: K and V of all heads in one operation, after the rows that make room have moved.
//!
//! Three forms: on bytes, under one lock; by a device's kernels; in candle's operations. O(bytes moved and written).

use candle_core::Tensor;
use kvtide_core::{SlotMove, SlotWrite};

use super::{launched, portable, shift};
use crate::base::error::Result;
use crate::device::form::Form;
use crate::tensor::buffer::Buffer;
use crate::tensor::resolved::Resolved;

/// Carries out `moves` inside `buffer`, in order, and then writes one source to each part. The sources lie elsewhere.
pub(crate) fn write(
    buffer: &Buffer,
    moves: impl Iterator<Item = SlotMove> + Clone + Sync,
    sources: &[Resolved<'_>],
    writes: [Option<SlotWrite>; 2],
) -> Result<()> {
    match buffer.form()? {
        Form::Bytes => on_bytes(buffer, moves, sources, writes),
        Form::Launched(stream) => {
            launched::move_rows(&stream, buffer, moves)?;
            launched::write(&stream, buffer, sources, writes)
        }
        Form::Portable => {
            portable_moves(buffer, moves)?;
            portable_writes(buffer, sources, writes)
        }
    }
}

/// Carries out `moves` inside `buffer`, in order.
pub(crate) fn move_rows(buffer: &Buffer, moves: impl Iterator<Item = SlotMove> + Clone + Sync) -> Result<()> {
    match buffer.form()? {
        Form::Bytes => {
            buffer.edit(&[], |bytes, _| shift(bytes, buffer.slots as usize, buffer.row_bytes(), moves.clone()))
        }
        Form::Launched(stream) => launched::move_rows(&stream, buffer, moves),
        Form::Portable => portable_moves(buffer, moves),
    }
}

fn on_bytes(
    buffer: &Buffer,
    moves: impl Iterator<Item = SlotMove> + Clone + Sync,
    sources: &[Resolved<'_>],
    writes: [Option<SlotWrite>; 2],
) -> Result<()> {
    let work = |bytes: &mut [u8], memory: &[&[u8]]| {
        shift(bytes, buffer.slots as usize, buffer.row_bytes(), moves.clone());
        let mut memory = memory.iter().copied();
        for (part, source) in sources.iter().enumerate() {
            let source_bytes = source.bytes(&mut memory);
            for write in writes.iter().flatten() {
                let SlotWrite { token, target } = *write;
                source.write_to(source_bytes, token, target.len, bytes, buffer, part, target.start);
            }
        }
    };
    with_tensors(sources, |tensors| buffer.edit(tensors, work))
}

/// Calls `run` with the tensors among one or two sources, in order.
pub(super) fn with_tensors<T>(sources: &[Resolved<'_>], run: impl FnOnce(&[&Tensor]) -> T) -> T {
    let mut tensors = sources.iter().filter_map(Resolved::tensor);
    match (tensors.next(), tensors.next()) {
        (Some(one), Some(other)) => run(&[one, other]),
        (Some(one), None) => run(&[one]),
        _ => run(&[]),
    }
}

fn portable_moves(buffer: &Buffer, moves: impl Iterator<Item = SlotMove>) -> Result<()> {
    let Some(grid) = buffer.grid()? else { return Ok(()) };
    let (count, element) = (buffer.shape.parts * buffer.stretch_count(), buffer.shape.dtype.bytes());
    let row = buffer.row_bytes() / element;
    for SlotMove { source, target } in moves {
        let (from, to) = (source.start as usize * row, target as usize * row);
        portable::relay(count, source.len as usize * row, element, &grid, from, &grid, to)?;
    }
    Ok(())
}

fn portable_writes(buffer: &Buffer, sources: &[Resolved<'_>], writes: [Option<SlotWrite>; 2]) -> Result<()> {
    let Some(grid) = buffer.grid()? else { return Ok(()) };
    let stretches = buffer.stretch_count();
    for (part, source) in sources.iter().enumerate() {
        let target = grid.narrow(part * stretches, stretches)?;
        for SlotWrite { token, target: slots } in writes.iter().flatten() {
            source.each_strided(*token, slots.len, |done, tokens| {
                portable::put(&target, buffer.shape.axis, slots.start as usize + done, &tokens)
            })?;
        }
    }
    Ok(())
}
