//! Reads a view.

use kvtide_cuda::{BoxCopy, Span, Stream, copy_boxes};

use crate::base::error::Result;
use crate::base::memory::Budget;
use crate::device::edit::download;
use crate::kernels::gather::targets;
use crate::tensor::buffer::Buffer;
use crate::tensor::view::View;

/// Copies the elements of `view` to the front of `target`, without gaps.
pub(in crate::kernels) fn gather(stream: &Stream, view: &View, target: &Buffer) -> Result<()> {
    target.launch(&[&view.buffer.tensor], |memory, sources| put(stream, view, memory, sources[0]))
}

/// Copies the elements of `view` to the host's memory, by way of the device's.
pub(in crate::kernels) fn read(stream: &Stream, view: &View, out: &mut [u8]) -> Result<()> {
    let staged = View::zeros(view.dims(), view.dtype(), &Budget::of(view.buffer.tensor.device()))?;
    gather(stream, view, &staged.buffer)?;
    download(&staged.buffer.tensor, 0, out)
}

fn put(stream: &Stream, view: &View, memory: Span<'_>, source: Span<'_>) -> Result<()> {
    let pieces: Vec<_> = view.pieces().filter(|piece| !piece.dims.contains(&0)).zip(targets(view)).collect();
    let boxes: Vec<_> = pieces
        .iter()
        .map(|(piece, to)| BoxCopy {
            target: memory.from(to.offset),
            target_strides: &to.strides,
            source: source.from(piece.place.offset),
            source_strides: &piece.place.strides,
            dims: &piece.dims,
            element: view.dtype().bytes(),
        })
        .collect();
    Ok(copy_boxes(stream, &boxes)?)
}
