//! Rows of tokens into pages, and back, all layers in one launch.

use bytemuck::{Pod, Zeroable};

use crate::divisor::Divisor;
use crate::error::Result;
use crate::kernel::{GATHER, Grid, SCATTER};
use crate::list::List;
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

/// Where the rows of K or V lie outside pages, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// Their memory.
    pub memory: Span<'a>,
    /// The first row.
    pub offset: usize,
    /// From a layer to the next.
    pub layer: usize,
    /// From a head to the next.
    pub head: usize,
    /// From a token to the next.
    pub token: usize,
}

/// Where they lie in a page, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Section {
    /// The first row of the first head.
    pub offset: usize,
    /// From a head to the next.
    pub head: usize,
    /// Of a row; 0 where there is none.
    pub row: usize,
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
struct Part {
    rows: u64,
    layer_bytes: u64,
    head_bytes: u64,
    token_bytes: u64,
    section: u64,
    section_head_bytes: u64,
    row_bytes: u32,
    row_units: Divisor,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Args {
    parts: [Part; 2],
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
    let numbers =
        of.sections.iter().zip(&of.rows).filter(|(section, _)| section.row > 0).flat_map(|(section, rows)| {
            let in_rows =
                [rows.memory.address() + rows.offset as u64, rows.layer as u64, rows.head as u64, rows.token as u64];
            let in_page = [section.offset, section.head, section.row].map(|bytes| bytes as u64);
            in_rows.into_iter().chain(in_page)
        });
    let pages = strips.iter().map(|strip| strip.page);
    let unit = Unit::WIDEST.dividing(numbers.chain(pages).chain([of.pages.address(), of.layer_bytes as u64]));
    let parts = [0, 1].map(|part| {
        let (section, rows) = (&of.sections[part], &of.rows[part]);
        Part {
            rows: rows.memory.address() + rows.offset as u64,
            layer_bytes: rows.layer as u64,
            head_bytes: rows.head as u64,
            token_bytes: rows.token as u64,
            section: section.offset as u64,
            section_head_bytes: section.head as u64,
            row_bytes: section.row as u32,
            row_units: if section.row == 0 { Divisor::default() } else { Divisor::new(section.row / unit.bytes()) },
        }
    });
    let widest = of.sections.iter().map(|section| section.row).max().unwrap_or(0) / unit.bytes();
    let kernels = if direction == Direction::Scatter { &SCATTER } else { &GATHER };
    let placed: Vec<Strip> =
        strips.iter().map(|strip| Strip { page: of.pages.address() + strip.page, ..*strip }).collect();
    for strips in placed.chunks(Grid::INNER_MAX as usize) {
        let listed = stream.list(strips)?;
        let tokens = strips.iter().map(|strip| strip.tokens as usize).max().unwrap_or(0);
        let units = tokens * of.heads * widest;
        assert!(units < 1 << 31, "units of 31 bits");
        let args =
            Args { parts, layer_bytes: of.layer_bytes as u64, heads: of.heads as u32, unused: 0, strips: listed.list };
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
        for (section, rows) in of.sections.iter().zip(&of.rows).filter(|(section, _)| section.row > 0 && of.heads > 0) {
            let slots = (strip.slot + strip.tokens) as usize;
            assert!(slots * section.row <= section.head, "slots reach outside their head");
            assert!(section.offset + of.heads * section.head <= of.page_bytes, "heads reach outside their page");
            let layer = strip.layer as usize + of.layers - 1;
            let token = (strip.token + strip.tokens) as usize - 1;
            let last = rows.offset + layer * rows.layer + (of.heads - 1) * rows.head + token * rows.token;
            assert!(last + section.row <= rows.memory.bytes(), "rows reach outside their memory");
        }
    }
}
