//! Pages as rows of keys and values.
//!
//! Where a head lies within a page is the same in all of them, and worked out once for a unit of work; a segment costs a few
//! additions.

use kvtide_core::paged::{HeadPlace, PageFormat, PageRead, Part};

use super::segment::{Scale, Segment};
use crate::error::{Error, Result};
use crate::kernels::tile::{AHEAD, Elements, Rows};
use crate::paged::PageRows;

/// Pages, and the bytes of the slab and of the staging slab.
#[derive(Clone, Copy)]
pub(super) struct Pages<'a> {
    pub rows: &'a PageRows<'a>,
    pub slab: &'a [u8],
    pub staging: &'a [u8],
}

/// Where one head lies in the pages of the slab, and in those of the staging slab.
#[derive(Clone, Copy)]
pub(super) struct PageHead {
    slab: [PartPlace; 2],
    staged: [PartPlace; 2],
}

/// Where the K or the V of a head lies in a page.
#[derive(Clone, Copy)]
struct PartPlace {
    format: PageFormat,
    part: Part,
    elements: Elements,
    dim: usize,
    place: HeadPlace,
    /// Pages from one at work to the one that is asked for; 0 where pages are so large that it is the same one.
    ahead: usize,
}

impl<'a> Pages<'a> {
    /// Where a head lies in every page.
    pub fn head(&self, head: usize) -> PageHead {
        let places = |layout: &kvtide_core::paged::PageLayout| {
            Part::BOTH.map(|part| {
                let (section, place) = (layout.section(part), layout.head_in_page(part, head as u32));
                let ahead = AHEAD / (place.row_bytes * self.rows.block_size()).max(1);
                let elements = elements(section.format);
                PartPlace { format: section.format, part, elements, dim: section.head_dim, place, ahead }
            })
        };
        PageHead { slab: places(&self.rows.shape.pages), staged: places(&self.rows.shape.staged) }
    }

    /// The rows from a token of a sequence on, to the end of its page.
    pub fn segment(&self, head: &PageHead, sequence: usize, token: usize) -> Segment<'a> {
        let block_size = self.rows.block_size();
        let (page, slot) = (self.rows.page(sequence, token).expect("a token of the sequence"), token % block_size);
        let (bytes, places) = match page.staged {
            Some(_) => (self.staging, &head.staged),
            None => (self.slab, &head.slab),
        };
        let start = self.rows.start(page);
        let part = |place: &PartPlace| {
            let next = self.rows.page(sequence, token + place.ahead * block_size);
            let ahead = match next {
                _ if place.ahead == 0 => AHEAD as isize,
                Some(next) if same_slab(next, page) => self.rows.start(next) as isize - start as isize,
                _ => 0,
            };
            let HeadPlace { codes, row_bytes, scales } = place.place;
            let rows = Rows {
                elements: place.elements,
                bytes,
                offset: start + codes + slot * row_bytes,
                stride: row_bytes,
                count: page.tokens as usize - slot,
                dim: place.dim,
                ahead,
            };
            (rows, scales.map_or(Scale::One, |scales| place.scale(&bytes[start + scales..], slot)))
        };
        let ((keys, key_scale), (values, value_scale)) = (part(&places[0]), part(&places[1]));
        Segment { keys, values, key_scale, value_scale, rotated: page.staged.is_none() && self.rows.shape.hadamard }
    }
}

impl PartPlace {
    /// The scales of the rows from `slot` on, found in those of a head.
    fn scale<'a>(&self, scales: &'a [u8], slot: usize) -> Scale<'a> {
        match (self.format, self.part) {
            (PageFormat::Q8, _) => Scale::Row(&scales[2 * slot..]),
            (PageFormat::Q4, Part::Value) => Scale::RowPair(&scales[4 * slot..]),
            (PageFormat::Q4, Part::Key) => Scale::Channel(&scales[..4 * self.dim]),
            _ => Scale::One,
        }
    }
}

fn same_slab(one: &PageRead, other: &PageRead) -> bool {
    one.staged.is_some() == other.staged.is_some()
}

/// Refuses pages that hold no floats.
pub(super) fn check_floats(rows: &PageRows<'_>) -> Result<()> {
    match rows.shape.pages.section(Part::Key).format {
        PageFormat::U8 => Err(Error::DtypeMismatch {
            argument: "cache",
            value: "u8".to_owned(),
            expected: "f32, f16, bf16 or a low-bit format".to_owned(),
        }),
        _ => Ok(()),
    }
}

fn elements(format: PageFormat) -> Elements {
    match format {
        PageFormat::F32 => Elements::F32,
        PageFormat::F16 => Elements::F16,
        PageFormat::BF16 => Elements::Bf16,
        PageFormat::F8E4M3 => Elements::F8,
        PageFormat::Q8 | PageFormat::U8 => Elements::I8,
        PageFormat::Q4 => Elements::Nibbles,
    }
}
