//! One new token of each sequence where lengths and tables in the device's memory say: a step that a graph replays.

use bytemuck::{Pod, Zeroable};

use crate::divisor::Divisor;
use crate::error::Result;
use crate::kernel::{ADVANCE, Grid, INSERT};
use crate::part::{Parts, PassedPart, Rows, Section};
use crate::span::Span;
use crate::stream::Stream;
use crate::unit::Unit;

/// What the sequences of a step hold, in the device's memory.
#[derive(Clone, Copy, Debug)]
pub struct Tables<'a> {
    /// Tokens of each, 32-bit; a negative number is none at all.
    pub lengths: Span<'a>,
    /// A row of blocks for each, 32-bit; a negative number is none.
    pub blocks: Span<'a>,
    /// Sequences.
    pub sequences: usize,
    /// Blocks of a row.
    pub row_blocks: usize,
}

/// Where new tokens go, and where they come from: `token` is the distance between sequences.
#[derive(Clone, Copy, Debug)]
pub struct Insert<'a> {
    /// The pages' memory.
    pub pages: Span<'a>,
    /// Bytes of a page, one layer of a block.
    pub page_bytes: usize,
    /// Bytes from a block to the next, all layers.
    pub block_bytes: usize,
    /// Tokens of a block.
    pub block_size: usize,
    /// Of K and V.
    pub sections: [Section; 2],
    /// Of K and V.
    pub rows: [Rows<'a>; 2],
    /// Heads of K, and of V.
    pub heads: usize,
    /// The first layer that is written.
    pub first_layer: usize,
    /// Layers.
    pub layers: usize,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Args {
    parts: [PassedPart; 2],
    pages: u64,
    block_bytes: u64,
    layer_bytes: u64,
    lengths: u64,
    tables: u64,
    row_blocks: u32,
    heads: u32,
    block_size: Divisor,
    blocks: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct AdvanceArgs {
    lengths: u64,
    sequences: u32,
    by: u32,
}

impl Tables<'_> {
    fn check(&self) {
        assert!(self.sequences * 4 <= self.lengths.bytes(), "lengths reach outside their memory");
        assert!(self.sequences * self.row_blocks * 4 <= self.blocks.bytes(), "tables reach outside their memory");
    }
}

/// Writes one token of each sequence behind its last one. A sequence whose row of blocks is too short is left alone.
pub fn insert(stream: &Stream, of: &Insert<'_>, tables: &Tables<'_>) -> Result<()> {
    const THREADS: usize = 256;
    of.pages.check_writable();
    tables.check();
    check(of, tables);
    let parts = Parts(&of.sections, &of.rows);
    let places = [of.pages.address(), of.page_bytes as u64, of.block_bytes as u64];
    let unit = Unit::WIDEST.dividing(parts.numbers().chain(places));
    let args = Args {
        parts: parts.of(unit),
        pages: of.pages.address() + (of.first_layer * of.page_bytes) as u64,
        block_bytes: of.block_bytes as u64,
        layer_bytes: of.page_bytes as u64,
        lengths: tables.lengths.address(),
        tables: tables.blocks.address(),
        row_blocks: tables.row_blocks as u32,
        heads: of.heads as u32,
        block_size: Divisor::new(of.block_size),
        blocks: (of.pages.bytes() / of.block_bytes.max(1)) as u32,
    };
    let grid = Grid::new([(of.heads * parts.widest(unit)).div_ceil(THREADS), tables.sequences, of.layers], THREADS);
    stream.launch(unit.of(&INSERT), grid, &args)
}

/// Makes `count` lengths `by` more, but for those that are negative.
pub fn advance(stream: &Stream, lengths: Span<'_>, count: usize, by: u32) -> Result<()> {
    const THREADS: usize = 256;
    lengths.check_writable();
    assert!(count * 4 <= lengths.bytes(), "lengths reach outside their memory");
    let args = AdvanceArgs { lengths: lengths.address(), sequences: count as u32, by };
    stream.launch(ADVANCE, Grid::new([count.div_ceil(THREADS), 1, 1], THREADS), &args)
}

/// Refuses pages and rows that reach outside their memory.
fn check(of: &Insert<'_>, tables: &Tables<'_>) {
    assert!((of.first_layer + of.layers) * of.page_bytes <= of.block_bytes, "layers reach outside their block");
    if of.layers > 0 && tables.sequences > 0 {
        let (layer, sequence) = (of.layers - 1, tables.sequences - 1);
        Parts(&of.sections, &of.rows).check(of.heads, of.page_bytes, of.block_size, layer, sequence);
    }
}
