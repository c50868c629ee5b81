//! Copies and zeroes pieces of equal size.

use bytemuck::{Pod, Zeroable};

use crate::error::Result;
use crate::kernel::{ByUnit, COPY_PIECES, Grid, ZERO_PIECES};
use crate::list::List;
use crate::span::Span;
use crate::stream::Stream;
use crate::unit::Unit;

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct PieceMove {
    source: u64,
    target: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Args {
    units: u32,
    moves: u32,
    list: List,
}

/// Copies pieces of `bytes` bytes from one span to another, given by their start offsets `(from, to)`. Groups of `moves`
/// neighbours in the list are chains, carried out in order; chains must not overlap each other.
pub fn copy_chains(
    stream: &Stream,
    (source, target): (Span<'_>, Span<'_>),
    bytes: usize,
    moves: usize,
    pieces: &[(usize, usize)],
) -> Result<()> {
    target.check_writable();
    assert!(moves > 0 && pieces.len().is_multiple_of(moves), "whole chains");
    let list: Vec<PieceMove> = pieces
        .iter()
        .map(|&(from, to)| PieceMove { source: start(source, from, bytes), target: start(target, to, bytes) })
        .collect();
    launch(stream, &COPY_PIECES, bytes, moves, &list)
}

/// Zeroes pieces of `bytes` bytes at these offsets.
pub fn zero_pieces(stream: &Stream, target: Span<'_>, bytes: usize, starts: &[usize]) -> Result<()> {
    target.check_writable();
    let list: Vec<PieceMove> =
        starts.iter().map(|&at| PieceMove { source: 0, target: start(target, at, bytes) }).collect();
    launch(stream, &ZERO_PIECES, bytes, 1, &list)
}

fn start(span: Span<'_>, at: usize, bytes: usize) -> u64 {
    assert!(at.checked_add(bytes).is_some_and(|end| end <= span.bytes()), "a piece reaches outside its memory");
    span.address() + at as u64
}

fn launch(stream: &Stream, kernels: &ByUnit, bytes: usize, moves: usize, pieces: &[PieceMove]) -> Result<()> {
    const THREADS: usize = 256;
    /// The most blocks for one piece; beyond that, a thread handles several units in a loop.
    const BLOCKS_MAX: usize = 1024;
    if bytes == 0 {
        return Ok(());
    }
    let unit =
        Unit::WIDEST.dividing(pieces.iter().flat_map(|piece| [piece.source, piece.target]).chain([bytes as u64]));
    let units = u32::try_from(bytes / unit.bytes()).expect("units of 32 bits");
    for chains in pieces.chunks(Grid::INNER_MAX as usize * moves) {
        let listed = stream.list(chains)?;
        let blocks = (units as usize).div_ceil(THREADS).min(BLOCKS_MAX);
        let grid = Grid::new([blocks, chains.len() / moves, 1], THREADS);
        stream.launch(unit.of(kernels), grid, &Args { units, moves: moves as u32, list: listed.list })?;
    }
    Ok(())
}
