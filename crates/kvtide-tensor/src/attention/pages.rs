//! Pages as rows of keys and values.

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

impl<'a> Pages<'a> {
    /// The rows from a token of a sequence on, to the end of its page.
    pub fn segment(&self, sequence: usize, head: usize, token: usize) -> Segment<'a> {
        let page = self.rows.page(sequence, token).expect("a token of the sequence");
        let slot = token % self.rows.block_size();
        let (keys, key_scale) = self.part(page, Part::Key, sequence, head, token, slot);
        let (values, value_scale) = self.part(page, Part::Value, sequence, head, token, slot);
        Segment { keys, values, key_scale, value_scale, rotated: page.staged.is_none() && self.rows.shape.hadamard }
    }

    fn part(
        &self,
        page: &PageRead,
        part: Part,
        sequence: usize,
        head: usize,
        token: usize,
        slot: usize,
    ) -> (Rows<'a>, Scale<'a>) {
        let (layout, bytes) = match page.staged {
            Some(_) => (&self.rows.shape.staged, self.staging),
            None => (&self.rows.shape.pages, self.slab),
        };
        let section = layout.section(part);
        let place = self.rows.place(page, part, head);
        let rows = Rows {
            elements: elements(section.format),
            bytes,
            offset: place.codes + slot * place.row_bytes,
            stride: place.row_bytes,
            count: page.tokens as usize - slot,
            dim: section.head_dim,
            ahead: self.ahead(page, part, sequence, head, token, &place),
        };
        (rows, scale(section.format, part, bytes, &place, slot, section.head_dim))
    }

    /// Bytes from a row to the same row of a page that is needed soon.
    fn ahead(&self, page: &PageRead, part: Part, sequence: usize, head: usize, token: usize, at: &HeadPlace) -> isize {
        let block_size = self.rows.block_size();
        let pages = (AHEAD / (at.row_bytes * block_size).max(1)).clamp(1, 4);
        match self.rows.page(sequence, token + pages * block_size) {
            Some(next) if next.staged.is_some() == page.staged.is_some() => {
                self.rows.place(next, part, head).codes as isize - at.codes as isize
            }
            _ => 0,
        }
    }
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

fn scale<'a>(format: PageFormat, part: Part, bytes: &'a [u8], place: &HeadPlace, slot: usize, dim: usize) -> Scale<'a> {
    let Some(scales) = place.scales else { return Scale::One };
    match (format, part) {
        (PageFormat::Q8, _) => Scale::Row(&bytes[scales + 2 * slot..]),
        (PageFormat::Q4, Part::Value) => Scale::RowPair(&bytes[scales + 4 * slot..]),
        (PageFormat::Q4, Part::Key) => Scale::Channel(&bytes[scales..scales + 4 * dim]),
        _ => Scale::One,
    }
}
