//! Row copies of buffers: new tokens into slots, and rows from slot to slot.
//!
//! Each has three implementations: on bytes, under one lock of candle's storage; with a device's kernels, in one launch; and
//! with candle's operations. All are O(bytes moved and written).

use candle_core::Tensor;
use kvtide_core::{Run, SlotMove, SlotWrite};
use kvtide_cuda::{BoxCopy, Span, Stream, copy_boxes};

use crate::base::error::Result;
use crate::device::form::Form;
use crate::kernels::{Stretches, portable, rows, shift};
use crate::tensor::buffer::Buffer;
use crate::tensor::source::Resolved;

/// Carries out `moves` inside `buffer`, in order, and then writes one source to each part. The sources must not overlap the
/// buffer.
pub(crate) fn write(
    buffer: &Buffer,
    moves: impl Iterator<Item = SlotMove> + Clone + Sync,
    sources: &[Resolved<'_>],
    writes: [Option<SlotWrite>; 2],
) -> Result<()> {
    match buffer.form()? {
        Form::Bytes(_) => with_tensors(sources, |tensors| {
            buffer.edit(tensors, |bytes, memory| {
                shift(bytes, buffer.slots as usize, buffer.row_bytes(), moves.clone());
                let mut memory = memory.iter().copied();
                for (part, source) in sources.iter().enumerate() {
                    let source_bytes = source.bytes(&mut memory);
                    for write in writes.iter().flatten() {
                        write_bytes(buffer, bytes, part, source, source_bytes, *write);
                    }
                }
            })
        }),
        Form::Launched(stream) => {
            launch_moves(&stream, buffer, moves)?;
            launch_writes(&stream, buffer, sources, writes)
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
        Form::Bytes(_) => {
            buffer.edit(&[], |bytes, _| shift(bytes, buffer.slots as usize, buffer.row_bytes(), moves.clone()))
        }
        Form::Launched(stream) => launch_moves(&stream, buffer, moves),
        Form::Portable => portable_moves(buffer, moves),
    }
}

/// Copies the rows of `run` in one buffer to `slot` of another buffer of the same shape: all parts in one operation.
pub(crate) fn copy_rows(source: &Buffer, run: Run, target: &Buffer, slot: u32) -> Result<()> {
    let count = source.all_stretches();
    let bytes = run.len as usize * source.row_bytes();
    let (to, from) = (target.stretches(0, slot), source.stretches(0, run.start));
    match target.form()? {
        Form::Bytes(_) => {
            target.edit(&[&source.tensor], |target, sources| rows(count, bytes, target, to, sources[0], from))
        }
        Form::Launched(_) if bytes == 0 => Ok(()),
        Form::Launched(stream) => target.launch(&[&source.tensor], |memory, sources| {
            let rows = BoxCopy {
                target: memory.from(to.offset),
                target_strides: &[to.stride, 1],
                source: sources[0].from(from.offset),
                source_strides: &[from.stride, 1],
                dims: &[count, bytes],
                element: 1,
            };
            Ok(copy_boxes(&stream, &[rows])?)
        }),
        Form::Portable => {
            let (Some(from), Some(to)) = (source.row_tensor()?, target.row_tensor()?) else { return Ok(()) };
            let element = source.shape.dtype.bytes();
            let row = source.row_bytes() / element;
            let (start, slot) = (run.start as usize * row, slot as usize * row);
            portable::relay(count, bytes / element, element, &from, start, &to, slot)
        }
    }
}

/// Copies the tokens of a write from `source_bytes` to their slots in one part of the buffer, whose bytes are `bytes`.
fn write_bytes(
    buffer: &Buffer,
    bytes: &mut [u8],
    part: usize,
    source: &Resolved<'_>,
    source_bytes: &[u8],
    SlotWrite { token, target }: SlotWrite,
) {
    let Some(stride) = source.stretch() else {
        return source.copy_strided(source_bytes, token, target.len, bytes, buffer.place(part, target.start));
    };
    for taken in source.taken(token, target.len) {
        let to = buffer.stretches(part, target.start + taken.done as u32);
        let from = Stretches { offset: taken.offset, stride };
        rows(buffer.stretch_count(), taken.tokens * buffer.row_bytes(), bytes, to, source_bytes, from);
    }
}

/// Calls `run` with the tensors among one or two sources, in order.
fn with_tensors<T>(sources: &[Resolved<'_>], run: impl FnOnce(&[&Tensor]) -> T) -> T {
    let mut tensors = sources.iter().filter_map(Resolved::tensor);
    match (tensors.next(), tensors.next()) {
        (Some(one), Some(other)) => run(&[one, other]),
        (Some(one), None) => run(&[one]),
        _ => run(&[]),
    }
}

fn launch_moves(stream: &Stream, buffer: &Buffer, moves: impl Iterator<Item = SlotMove>) -> Result<()> {
    let of =
        |SlotMove { source, target }| kvtide_cuda::Move { source: source.start, target, rows: source.len, unused: 0 };
    let moves: Vec<_> = moves.map(of).collect();
    if moves.is_empty() {
        return Ok(());
    }
    let (count, rows, row) = (buffer.all_stretches(), buffer.slots as usize, buffer.row_bytes());
    let stretches = kvtide_cuda::BufferRows { count, rows, row };
    buffer.launch(&[], |memory, _| Ok(kvtide_cuda::shift(stream, memory, stretches, &moves)?))
}

/// Writes all of K and V in one launch.
fn launch_writes(
    stream: &Stream,
    buffer: &Buffer,
    sources: &[Resolved<'_>],
    writes: [Option<SlotWrite>; 2],
) -> Result<()> {
    let mut found = Vec::new();
    for (part, source) in sources.iter().enumerate() {
        for SlotWrite { token, target } in writes.iter().flatten() {
            for taken in source.taken(*token, target.len) {
                let to = buffer.place(part, target.start + taken.done as u32).offset;
                found.push((part, to, taken.offset, source.dims.with(source.axis(), taken.tokens)));
            }
        }
    }
    found.retain(|(.., dims)| !dims.contains(&0));
    let strides = buffer.place(0, 0).strides;
    with_tensors(sources, |tensors| {
        buffer.launch(tensors, |memory, tensors| {
            let mut tensors = tensors.iter().copied();
            let spans: Vec<Span<'_>> = sources.iter().map(|source| source.span(&mut tensors)).collect();
            let boxes: Vec<_> = found
                .iter()
                .map(|(part, to, from, dims)| BoxCopy {
                    target: memory.from(*to),
                    target_strides: &strides,
                    source: spans[*part].from(*from),
                    source_strides: sources[*part].strides(),
                    dims,
                    element: buffer.shape.dtype.bytes(),
                })
                .collect();
            Ok(copy_boxes(stream, &boxes)?)
        })
    })
}

fn portable_moves(buffer: &Buffer, moves: impl Iterator<Item = SlotMove>) -> Result<()> {
    let Some(tensor) = buffer.row_tensor()? else { return Ok(()) };
    let element = buffer.shape.dtype.bytes();
    let row = buffer.row_bytes() / element;
    for SlotMove { source, target } in moves {
        let (from, to) = (source.start as usize * row, target as usize * row);
        portable::relay(buffer.all_stretches(), source.len as usize * row, element, &tensor, from, &tensor, to)?;
    }
    Ok(())
}

fn portable_writes(buffer: &Buffer, sources: &[Resolved<'_>], writes: [Option<SlotWrite>; 2]) -> Result<()> {
    let Some(tensor) = buffer.row_tensor()? else { return Ok(()) };
    let stretches = buffer.stretch_count();
    for (part, source) in sources.iter().enumerate() {
        let target = tensor.narrow(part * stretches, stretches)?;
        for SlotWrite { token, target: slots } in writes.iter().flatten() {
            for taken in source.taken(*token, slots.len) {
                let slot = slots.start as usize + taken.done;
                portable::put(&target, buffer.shape.axis, slot, &source.host_or_tensor(&taken)?)?;
            }
        }
    }
    Ok(())
}
