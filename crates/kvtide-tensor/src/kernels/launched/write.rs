//! New tokens into a buffer: all of K and V in one launch.

use kvtide_core::SlotWrite;
use kvtide_cuda::{BoxCopy, Span, Stream, copy_boxes};

use crate::base::dims::Dims;
use crate::base::error::Result;
use crate::kernels::write::with_tensors;
use crate::tensor::buffer::Buffer;
use crate::tensor::resolved::Resolved;

/// A run of tokens: where it goes, where it lies, its sizes.
struct Piece {
    part: usize,
    to: usize,
    from: usize,
    dims: Dims,
}

/// Writes one source to each part.
pub(in crate::kernels) fn write(
    stream: &Stream,
    buffer: &Buffer,
    sources: &[Resolved<'_>],
    writes: [Option<SlotWrite>; 2],
) -> Result<()> {
    let mut pieces = Vec::new();
    for (part, source) in sources.iter().enumerate() {
        for SlotWrite { token, target } in writes.iter().flatten() {
            source.each_place(*token, target.len, |done, from, tokens| {
                let to = buffer.place(part, target.start + done as u32).offset;
                pieces.push(Piece { part, to, from, dims: source.dims.with(source.axis(), tokens) });
            });
        }
    }
    pieces.retain(|piece| !piece.dims.contains(&0));
    let strides = buffer.place(0, 0).strides;
    with_tensors(sources, |tensors| {
        buffer.launch(tensors, |memory, tensors| {
            let mut tensors = tensors.iter().copied();
            let spans: Vec<Span<'_>> = sources.iter().map(|source| source.span(&mut tensors)).collect();
            let boxes: Vec<_> = pieces
                .iter()
                .map(|piece| BoxCopy {
                    target: memory.from(piece.to),
                    target_strides: &strides,
                    source: spans[piece.part].from(piece.from),
                    source_strides: sources[piece.part].strides(),
                    dims: &piece.dims,
                    element: buffer.shape.dtype.bytes(),
                })
                .collect();
            Ok(copy_boxes(stream, &boxes)?)
        })
    })
}
