//! Pages as rows of keys and values.
//!
//! Where heads lie within a page is the same in all of them, and worked out once for a unit of work; a segment costs a few
//! additions.

use std::ops::Range;

use kvtide_core::paged::{HeadPlace, KeyOrValue, PageFormat, PageLayout, PageRead};

use super::segment::{Scale, Scales, Segment};
use crate::base::error::{Error, Result};
use crate::kernels::tile::{AHEAD, Ahead, Elements, Rows};
use crate::paged::PageRows;

/// Pages, and the bytes of the slab and of the staging slab.
#[derive(Clone, Copy)]
pub(super) struct Pages<'a> {
    pub rows: &'a PageRows<'a>,
    pub slab: &'a [u8],
    pub staging: &'a [u8],
}

/// Where some heads lie in the pages of the slab, and in those of the staging slab.
#[derive(Clone, Copy)]
pub(super) struct PageHeads {
    slab: [PartPlace; 2],
    staged: [PartPlace; 2],
}

/// Where the K or the V of some heads lies in a page.
#[derive(Clone, Copy)]
struct PartPlace {
    scale: Scale,
    elements: Elements,
    dim: usize,
    heads: usize,
    /// The first head's.
    place: HeadPlace,
    /// Bytes from a head's codes to the next head's, and from scales to scales.
    strides: [usize; 2],
    /// Bytes of a row's scales; 0 where they are not by row.
    row_scales: usize,
}

impl<'a> Pages<'a> {
    /// Where some heads lie in every page.
    pub fn heads(&self, heads: &Range<usize>) -> PageHeads {
        let places = |layout| KeyOrValue::BOTH.map(|part| self.place(layout, part, heads));
        PageHeads { slab: places(&self.rows.shape.pages), staged: places(&self.rows.shape.staged) }
    }

    fn place(&self, layout: &PageLayout, part: KeyOrValue, heads: &Range<usize>) -> PartPlace {
        let section = layout.section(part);
        let (scale, row_scales) = scale(section.format, part);
        PartPlace {
            scale,
            elements: elements(section.format),
            dim: section.head_dim,
            heads: heads.len(),
            place: layout.head_in_page(part, heads.start as u32),
            strides: [section.head_bytes, section.scale_bytes],
            row_scales,
        }
    }

    /// The rows from a token of a sequence on, to the end of its page.
    pub fn segment(&self, heads: &PageHeads, sequence: usize, token: usize) -> Segment<'a> {
        let block_size = self.rows.block_size();
        let (page, slot) = (self.rows.page(sequence, token).expect("a token of the sequence"), token % block_size);
        let (bytes, places) = match page.staged {
            Some(_) => (self.staging, &heads.staged),
            None => (self.slab, &heads.slab),
        };
        let start = self.rows.start(page);
        let part = |place: &PartPlace| {
            let HeadPlace { codes, row_bytes, scales } = place.place;
            let length = place.heads * place.strides[0];
            let rows = Rows {
                elements: place.elements,
                bytes,
                offset: start + codes + slot * row_bytes,
                heads: place.heads,
                head_stride: place.strides[0],
                stride: row_bytes,
                count: page.tokens as usize - slot,
                dim: place.dim,
                ahead: self.ahead(sequence, token, length),
            };
            let scales = scales.map_or(Scales::ONE, |scales| Scales {
                scale: place.scale,
                bytes: &bytes[start + scales + slot * place.row_scales..],
                head_stride: place.strides[1],
            });
            (rows, scales)
        };
        let ((keys, key_scales), (values, value_scales)) = (part(&places[0]), part(&places[1]));
        Segment { keys, values, key_scales, value_scales, rotated: page.staged.is_none() && self.rows.shape.hadamard }
    }

    /// Where that lies which is needed soon after the rows of a token, in pages of which `length` bytes are read each.
    fn ahead(&self, sequence: usize, token: usize, length: usize) -> Ahead {
        let block_size = self.rows.block_size();
        let page = |pages: usize| self.rows.page(sequence, token + pages * block_size);
        let Some(this) = page(0) else { return Ahead::NOTHING };
        // Bytes from the rows to those at the same place of a later page, and `further` bytes behind them.
        let distance = |pages: usize, further: isize| match page(pages) {
            Some(next) if same_slab(next, this) => {
                self.rows.start(next) as isize - self.rows.start(this) as isize + further
            }
            _ => 0,
        };
        let (pages, rest) = (AHEAD / length.max(1), AHEAD % length.max(1));
        let (near, far) = (distance(pages, rest as isize), distance(pages + 1, rest as isize - length as isize));
        Ahead { near, far, turn: length - rest }
    }
}

/// How codes become numbers, and the bytes of a row's scales.
fn scale(format: PageFormat, part: KeyOrValue) -> (Scale, usize) {
    match (format, part) {
        (PageFormat::Q8, _) => (Scale::Row, 2),
        (PageFormat::Q4, KeyOrValue::Value) => (Scale::RowPair, 4),
        (PageFormat::Q4, KeyOrValue::Key) => (Scale::Channel, 0),
        _ => (Scale::One, 0),
    }
}

fn same_slab(one: &PageRead, other: &PageRead) -> bool {
    one.staged.is_some() == other.staged.is_some()
}

/// Refuses pages that hold no floats.
pub(super) fn check_floats(rows: &PageRows<'_>) -> Result<()> {
    match rows.shape.pages.section(KeyOrValue::Key).format {
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
