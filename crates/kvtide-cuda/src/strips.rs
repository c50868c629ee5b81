//! Rows of tokens into pages, and back, all layers in one launch.

use bytemuck::{Pod, Zeroable};

use crate::error::Result;
use crate::kernel::{GATHER, Grid, SCATTER};
use crate::list::List;
use crate::part::{Parts, PassedPart, Rows, Section};
use crate::span::Span;
use crate::stream::Stream;
use crate::unit::Unit;

/// The neighbouring slots of one page that tokens go to, or come from.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct Strip {
    /// The first byte of the page of the first layer.
    pub page: u64,
    /// The first token.
    pub token: u32,
    /// Its slot.
    pub slot: u32,
    /// How many.
    pub tokens: u32,
    /// Which layer of the rows the first one is.
    pub layer: u32,
}

/// Which way rows go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Into pages.
    Scatter,
    /// Out of pages.
    Gather,
}

/// What a call carries.
#[derive(Clone, Copy, Debug)]
pub struct Strips<'a> {
    /// The pages' memory.
    pub pages: Span<'a>,
    /// Bytes of a page.
    pub page_bytes: usize,
    /// Of K and V.
    pub sections: [Section; 2],
    /// Of K and V.
    pub rows: [Rows<'a>; 2],
    /// Heads of K, and of V.
    pub heads: usize,
    /// Layers; those of a strip's page follow it.
    pub layers: usize,
    /// Bytes from a layer's page to the next.
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

/// Carries strips between pages and rows. Strips do not share slots, nor rows that are written.
pub fn copy_strips(stream: &Stream, direction: Direction, of: &Strips<'_>, strips: &[Strip]) -> Result<()> {
    const THREADS: usize = 256;
    /// Units that a thread carries at once.
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

/// Refuses strips that reach outside pages, and rows outside their memory.
fn check(of: &Strips<'_>, strips: &[Strip]) {
    for strip in strips.iter().filter(|strip| strip.tokens > 0 && of.layers > 0) {
        let last_page = strip.page as usize + (of.layers - 1) * of.layer_bytes;
        assert!(last_page + of.page_bytes <= of.pages.bytes(), "a page reaches outside its memory");
        let (slots, layer) = ((strip.slot + strip.tokens) as usize, strip.layer as usize + of.layers - 1);
        let token = (strip.token + strip.tokens) as usize - 1;
        Parts(&of.sections, &of.rows).check(of.heads, of.page_bytes, slots, layer, token);
    }
}
