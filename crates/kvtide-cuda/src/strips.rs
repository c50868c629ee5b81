//! Copies rows of tokens into pages, and back, all layers in one launch.

use bytemuck::{Pod, Zeroable};

use crate::error::Result;
use crate::kernel::{GATHER, Grid, SCATTER};
use crate::list::List;
use crate::part::{Parts, PassedPart, Rows, Section};
use crate::span::Span;
use crate::stream::Stream;
use crate::unit::Unit;

/// Neighbouring slots of one page, the source or target of tokens.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct Strip {
    /// The offset of the first layer's page.
    pub page: u64,
    /// The first token.
    pub token: u32,
    /// The slot of the first token.
    pub slot: u32,
    /// The number of tokens.
    pub tokens: u32,
    /// The layer in the rows that the first layer corresponds to.
    pub layer: u32,
}

/// The direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From rows into pages.
    Scatter,
    /// From pages into rows.
    Gather,
}

/// A copy of strips.
#[derive(Clone, Copy, Debug)]
pub struct Strips<'a> {
    /// The memory of the pages.
    pub pages: Span<'a>,
    /// The bytes of a page.
    pub page_bytes: usize,
    /// The places of K and V in a page.
    pub sections: [Section; 2],
    /// The rows of K and V.
    pub rows: [Rows<'a>; 2],
    /// The number of KV heads.
    pub heads: usize,
    /// The number of layers; their pages follow a strip's page.
    pub layers: usize,
    /// The distance from one layer's page to the next in bytes.
    pub layer_bytes: usize,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Args {
    parts: [PassedPart; 2],
    layer_bytes: u64,
    heads: u32,
    unused: u32,
    strips: List,
}

/// Copies strips between pages and rows. Strips must not share slots, nor rows that are written.
pub fn copy_strips(stream: &Stream, direction: Direction, of: &Strips<'_>, strips: &[Strip]) -> Result<()> {
    const THREADS: usize = 256;
    /// The units that a thread copies at once.
    const EACH: usize = 4;
    match direction {
        Direction::Scatter => of.pages.check_writable(),
        Direction::Gather => of.rows.iter().for_each(|rows| rows.memory.check_writable()),
    }
    check(of, strips);
    let parts = Parts(&of.sections, &of.rows);
    let pages = strips.iter().map(|strip| strip.page).chain([of.pages.address(), of.layer_bytes as u64]);
    let unit = Unit::WIDEST.dividing(parts.numbers().chain(pages));
    let kernels = if direction == Direction::Scatter { &SCATTER } else { &GATHER };
    let placed: Vec<Strip> =
        strips.iter().map(|strip| Strip { page: of.pages.address() + strip.page, ..*strip }).collect();
    for strips in placed.chunks(Grid::INNER_MAX as usize) {
        let listed = stream.list(strips)?;
        let tokens = strips.iter().map(|strip| strip.tokens as usize).max().unwrap_or(0);
        let units = tokens * of.heads * parts.widest(unit);
        assert!(units < 1 << 31, "units of 31 bits");
        let args = Args {
            parts: parts.of(unit),
            layer_bytes: of.layer_bytes as u64,
            heads: of.heads as u32,
            unused: 0,
            strips: listed.list,
        };
        let grid = Grid::new([units.div_ceil(THREADS * EACH), strips.len(), of.layers], THREADS);
        stream.launch(unit.of(kernels), grid, &args)?;
    }
    Ok(())
}

/// Panics if strips reach outside pages, or rows outside their memory.
fn check(of: &Strips<'_>, strips: &[Strip]) {
    for strip in strips.iter().filter(|strip| strip.tokens > 0 && of.layers > 0) {
        let last_page = strip.page as usize + (of.layers - 1) * of.layer_bytes;
        assert!(last_page + of.page_bytes <= of.pages.bytes(), "a page reaches outside its memory");
        let (slots, layer) = ((strip.slot + strip.tokens) as usize, strip.layer as usize + of.layers - 1);
        let token = (strip.token + strip.tokens) as usize - 1;
        Parts(&of.sections, &of.rows).check(of.heads, of.page_bytes, slots, layer, token);
    }
}
