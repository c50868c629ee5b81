//! Converts rows of floats to the codes and scales of low-bit pages, and back.
//!
//! ```text
//! seal     rows of K and V -> codes and scales of whole pages
//! unseal   some slots of pages -> rows of K and V
//! zero     sets some slots of pages to zero, exactly, and leaves the others in place
//! ```
//!
//! An unquantised part is copied by `seal`, and copied or widened to 32 bits by `unseal`. All pages of a call are one
//! launch. Codes and scales equal the host's bit for bit, and so do values, except for the bits of NaN.

use bytemuck::{Pod, Zeroable};

use crate::divisor::Divisor;
use crate::error::Result;
use crate::kernel::{Grid, Kernel, SEAL, UNSEAL, ZERO_SLOTS};
use crate::list::List;
use crate::part::Section;
use crate::span::Span;
use crate::stream::Stream;
use crate::unit::Unit;

/// The format of rows; the kernels use the same numbers.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub enum Format {
    /// 32-bit floats.
    F32,
    /// 16-bit floats.
    F16,
    /// The upper halves of 32-bit floats.
    Bf16,
    /// 8-bit floats.
    F8,
    /// Bytes, with a scale for each row.
    Q8,
    /// Nibbles, with a scale and a minimum for each row.
    Q4Rows,
    /// Nibbles, with a scale and a minimum for each channel of a page.
    Q4Channels,
}

impl Format {
    /// The bytes of an element, for formats whose elements are whole bytes.
    fn element_bytes(self) -> usize {
        match self {
            Format::F32 => 4,
            Format::F16 | Format::Bf16 => 2,
            _ => 1,
        }
    }

    /// The bytes of a row.
    fn row_bytes(self, dim: usize) -> usize {
        if self >= Format::Q4Rows { dim.div_ceil(2) } else { dim * self.element_bytes() }
    }

    /// The bytes of the scales of a head.
    fn scale_bytes(self, slots: usize, dim: usize) -> usize {
        match self {
            Format::Q8 => 2 * slots,
            Format::Q4Rows => 4 * slots,
            Format::Q4Channels => 4 * dim,
            _ => 0,
        }
    }
}

/// K or V of a call.
#[derive(Clone, Copy, Debug)]
pub struct Quantised<'a> {
    /// The memory of its rows.
    pub rows: Span<'a>,
    /// The distance from one head to the next in the rows, in bytes.
    pub head: usize,
    /// The distance from one token to the next in the rows, in bytes.
    pub token: usize,
    /// The element type of rows: a float.
    pub element: Format,
    /// The format in pages.
    pub format: Format,
    /// The elements of a row; 0 if there are no rows.
    pub dim: usize,
    /// True if rows are rotated by a Hadamard matrix before they are quantised.
    pub is_rotated: bool,
    /// The places of the codes in a page.
    pub codes: Section,
    /// The offset of the scales in a page, and the distance from one head's scales to the next in bytes.
    pub scales: [usize; 2],
}

/// The pages of a call.
#[derive(Clone, Copy, Debug)]
pub struct QuantisedPages<'a> {
    /// Their memory.
    pub memory: Span<'a>,
    /// The bytes of a page.
    pub page_bytes: usize,
    /// The number of tokens in a page.
    pub slots: usize,
    /// The number of KV heads.
    pub heads: usize,
    /// K and V.
    pub parts: [Quantised<'a>; 2],
}

/// A page, and its rows.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct QuantisedPage {
    /// The offset of the page.
    pub page: u64,
    /// For K and V, the offset of the row of the first head and the first slot.
    pub rows: [u64; 2],
    /// The first slot; 0 for sealing, because pages are sealed as a whole.
    pub slot: u32,
    /// The number of slots.
    pub tokens: u32,
}

/// Neighbouring slots of a page.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct Hole {
    /// The offset of the page.
    pub page: u64,
    /// The first slot.
    pub start: u32,
    /// The slot after the last one.
    pub end: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default, Pod, Zeroable)]
struct QuantisedPart {
    codes: u64,
    code_head_bytes: u64,
    scales: u64,
    scale_head_bytes: u64,
    head_bytes: u64,
    token_bytes: u64,
    row_bytes: u32,
    format: u32,
    element: u32,
    dim: u32,
    rotated: u32,
    factor: f32,
    tile_rows: u32,
    vectors: Divisor,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Args {
    parts: [QuantisedPart; 2],
    heads: u32,
    /// The number of items in the list.
    count: u32,
    pages: List,
}

/// The most elements of a row that may be quantised: a row must fit in shared memory, with the bounds of channels.
pub const ROW_MAX: usize = 6144;

/// Quantises whole pages.
pub fn seal(stream: &Stream, of: &QuantisedPages<'_>, pages: &[QuantisedPage]) -> Result<()> {
    of.memory.check_writable();
    assert!(pages.iter().all(|page| page.slot == 0 && page.tokens as usize == of.slots), "whole pages are sealed");
    assert!(
        of.parts.iter().all(|part| part.dim == 0 || part.format > Format::Bf16 || part.format == part.element),
        "what is not quantised is copied"
    );
    launch(stream, &SEAL, of, pages)
}

/// Dequantises slots of pages. The written rows must not overlap.
pub fn unseal(stream: &Stream, of: &QuantisedPages<'_>, pages: &[QuantisedPage]) -> Result<()> {
    of.parts.iter().filter(|part| part.dim > 0).for_each(|part| part.rows.check_writable());
    launch(stream, &UNSEAL, of, pages)
}

/// Zeroes slots of pages; the slots of one page must be neighbours in the list. Codes of a head must be contiguous. The rows
/// of the call are not used.
pub fn zero_slots(stream: &Stream, of: &QuantisedPages<'_>, holes: &[Hole]) -> Result<()> {
    const THREADS: usize = 64;
    of.memory.check_writable();
    holes.iter().for_each(|hole| check_page(of, hole.page, hole.end.max(hole.start)));
    for part in of.parts.iter().filter(|part| part.dim > 0) {
        assert_eq!(part.codes.row * of.slots, part.codes.head, "codes without gaps");
    }
    let parts = of.parts.map(|part| part.passed(of.slots, 1));
    let placed: Vec<Hole> = holes.iter().map(|hole| Hole { page: of.memory.address() + hole.page, ..*hole }).collect();
    let mut rest = &placed[..];
    while !rest.is_empty() {
        // As many whole pages as fit in a grid.
        let (mut end, most) = (0, Grid::INNER_MAX as usize);
        for page in rest.chunk_by(|one, other| one.page == other.page) {
            assert!(page.len() <= most, "a page with so many holes");
            if end + page.len() > most {
                break;
            }
            end += page.len();
        }
        let (holes, behind) = rest.split_at(end);
        let listed = stream.list(holes)?;
        let args = Args { parts, heads: of.heads as u32, count: holes.len() as u32, pages: listed.list };
        stream.launch(ZERO_SLOTS, Grid::new([2 * of.heads, holes.len(), 1], THREADS), &args)?;
        rest = behind;
    }
    Ok(())
}

/// Launches one of two kernels: the first reads four elements at a time, the second reads one.
fn launch(
    stream: &Stream,
    kernels: &[&'static Kernel; 2],
    of: &QuantisedPages<'_>,
    pages: &[QuantisedPage],
) -> Result<()> {
    const THREADS_MAX: usize = 256;
    pages.iter().for_each(|page| check(of, page));
    let placed = |page: &QuantisedPage| {
        let rows = [0, 1].map(|part| of.parts[part].rows.address() + page.rows[part]);
        QuantisedPage { page: of.memory.address() + page.page, rows, ..*page }
    };
    let placed: Vec<QuantisedPage> = pages.iter().map(placed).collect();
    let at_once = if is_wide(of, &placed) { 4 } else { 1 };
    let parts = [0, 1].map(|part| of.parts[part].passed(of.slots, at_once));
    let elements = of.parts.iter().map(|part| of.slots * part.dim).max().unwrap_or(0);
    let threads = (elements / at_once).next_multiple_of(32).clamp(32, THREADS_MAX);
    let shared = of.parts.iter().map(|part| part.shared_bytes(of.slots)).max().unwrap_or(0);
    for pages in placed.chunks(Grid::INNER_MAX as usize) {
        let listed = stream.list(pages)?;
        let args = Args { parts, heads: of.heads as u32, count: pages.len() as u32, pages: listed.list };
        let mut grid = Grid::new([2 * of.heads, pages.len(), 1], threads);
        grid.shared_bytes = shared as u32;
        stream.launch(kernels[usize::from(at_once == 1)], grid, &args)?;
    }
    Ok(())
}

/// True if rows and codes can be read four elements at a time.
fn is_wide(of: &QuantisedPages<'_>, placed: &[QuantisedPage]) -> bool {
    of.parts.iter().enumerate().filter(|(_, part)| part.dim > 0).all(|(which, part)| {
        let divides = |elements: usize, numbers: &mut dyn Iterator<Item = u64>| {
            Unit::WIDEST.dividing(numbers).bytes() >= elements.next_power_of_two()
        };
        let in_rows = [part.head, part.token].map(|bytes| bytes as u64);
        let in_page = [part.codes.offset, part.codes.head, part.codes.row].map(|bytes| bytes as u64);
        // Rows of nibbles are read as words if they consist of groups of 32, else byte by byte.
        let in_words = part.format < Format::Q4Rows || part.dim.is_multiple_of(32);
        part.dim.is_multiple_of(4)
            && divides(4 * part.element.element_bytes(), &mut placed.iter().map(|page| page.rows[which]).chain(in_rows))
            && (!in_words
                || divides(4 * part.format.element_bytes(), &mut placed.iter().map(|page| page.page).chain(in_page)))
    })
}

impl Quantised<'_> {
    /// The number of elements that are rotated together: the largest power of two that divides a row.
    fn rotated(&self) -> usize {
        if self.is_rotated && self.dim > 0 { 1 << self.dim.trailing_zeros() } else { 1 }
    }

    /// The rows of a head that are processed together.
    fn tile_rows(&self, slots: usize) -> usize {
        const TILE: usize = 8192;
        (TILE / self.dim.max(1)).clamp(1, slots.max(1))
    }

    /// Shared memory for a tile, followed by the bounds of channels.
    fn shared_bytes(&self, slots: usize) -> usize {
        let channels = if self.format == Format::Q4Channels { 3 * self.dim } else { 0 };
        if self.format <= Format::Bf16 { 0 } else { 4 * (self.tile_rows(slots) * self.dim + channels) }
    }

    fn passed(&self, slots: usize, at_once: usize) -> QuantisedPart {
        if self.dim == 0 {
            return QuantisedPart::default();
        }
        assert!(self.dim <= ROW_MAX || self.format <= Format::Bf16, "rows that fit in shared memory");
        let rotated = self.rotated();
        QuantisedPart {
            codes: self.codes.offset as u64,
            code_head_bytes: self.codes.head as u64,
            scales: self.scales[0] as u64,
            scale_head_bytes: self.scales[1] as u64,
            head_bytes: self.head as u64,
            token_bytes: self.token as u64,
            row_bytes: self.codes.row as u32,
            format: self.format as u32,
            element: self.element as u32,
            dim: self.dim as u32,
            rotated: rotated as u32,
            factor: (1. / (rotated as f64).sqrt()) as f32,
            tile_rows: self.tile_rows(slots) as u32,
            vectors: Divisor::new(self.dim / at_once),
        }
    }
}

/// Panics if pages or rows reach outside their memory.
fn check(of: &QuantisedPages<'_>, page: &QuantisedPage) {
    check_page(of, page.page, page.slot + page.tokens);
    for (part, rows) in of.parts.iter().zip(page.rows).filter(|(part, _)| part.dim > 0 && of.heads > 0) {
        assert!(part.element <= Format::Bf16, "rows are floats");
        let tokens = (page.tokens as usize).saturating_sub(1);
        let last = rows as usize + (of.heads - 1) * part.head + tokens * part.token;
        assert!(last + part.element.row_bytes(part.dim) <= part.rows.bytes(), "rows reach outside their memory");
    }
}

/// Panics if a page reaches outside its memory, or has no slots up to `end`.
fn check_page(of: &QuantisedPages<'_>, page: u64, end: u32) {
    assert!(page as usize + of.page_bytes <= of.memory.bytes(), "a page reaches outside its memory");
    assert!(end as usize <= of.slots, "slots reach outside their page");
    for part in of.parts.iter().filter(|part| part.dim > 0) {
        assert!(part.codes.row == part.format.row_bytes(part.dim), "codes as long as their row");
        assert!(of.slots * part.codes.row <= part.codes.head, "slots reach outside their head");
        assert!(part.codes.offset + of.heads * part.codes.head <= of.page_bytes, "heads reach outside their page");
        assert!(of.slots * part.dim < 1 << 31, "elements of 31 bits");
        let [scales, scale_head] = part.scales;
        let scale_bytes = part.format.scale_bytes(of.slots, part.dim);
        assert!(scale_bytes <= scale_head, "scales reach outside their head");
        assert!(scales + of.heads * scale_head <= of.page_bytes, "scales reach outside their page");
        let align = if part.format == Format::Q8 { 2 } else { 4 };
        assert!(
            (scales | scale_head | page as usize).is_multiple_of(align) || scale_bytes == 0,
            "scales as they are read"
        );
    }
}
