//! Operations on the bytes of a page: quantising, dequantising, and zeroing slots.

use std::ops::Range;

use kvtide_core::paged::{HeadPlace, KeyOrValue, SlotRun};

use super::slabs::PagedShape;
use crate::kernels::Carrier;
use crate::kernels::pages::{Sources, heads, write_rows};
use crate::kernels::quantise::{Codec, from_f32, saturate, to_f32};

/// Clears slots in the codes and the scales of one head.
type ClearSlots = fn(&Codec, &mut [u8], &mut [u8], &[Range<u32>]);

impl PagedShape {
    /// Codes and scales of a head in a page of the slab.
    fn head_mut<'a>(&self, page: &'a mut [u8], part: KeyOrValue, head: u32) -> (&'a mut [u8], &'a mut [u8]) {
        let section = self.pages.section(part);
        let HeadPlace { codes, scales, .. } = self.pages.head_in_page(part, head);
        let (before, after) = page.split_at_mut(scales.unwrap_or(page.len()));
        (&mut before[codes..codes + section.head_bytes], &mut after[..section.scale_bytes])
    }

    /// The rows of a head in a staging page, as bytes of it.
    fn staged_head(&self, part: KeyOrValue, head: u32) -> Range<usize> {
        let start = self.staged.head_in_page(part, head).codes;
        start..start + self.staged.section(part).head_bytes
    }

    /// Quantises a full staging page into a page of the slab.
    pub(super) fn seal(&self, staged: &[u8], page: &mut [u8], scratch: &mut [f32]) {
        for (part, head) in heads(&self.pages) {
            let rows = &staged[self.staged_head(part, head)];
            let (codes, scales) = self.head_mut(page, part, head);
            match &self.codecs[part as usize] {
                None => codes.copy_from_slice(rows),
                Some(codec) => {
                    let values = &mut scratch[..codec.elements()];
                    to_f32(self.dtype, rows, values);
                    codec.encode(values, codes, scales);
                }
            }
        }
    }

    /// Dequantises a page of the slab into a staging page.
    pub(super) fn unseal(&self, page: &[u8], staged: &mut [u8], scratch: &mut [f32]) {
        for (part, head) in heads(&self.pages) {
            let rows = &mut staged[self.staged_head(part, head)];
            let section = self.pages.section(part);
            let HeadPlace { codes, scales, .. } = self.pages.head_in_page(part, head);
            let codes = &page[codes..codes + section.head_bytes];
            match &self.codecs[part as usize] {
                None => rows.copy_from_slice(codes),
                Some(codec) => {
                    let values = &mut scratch[..codec.elements()];
                    let scales = scales.map_or(&[][..], |scales| &page[scales..scales + section.scale_bytes]);
                    codec.decode(codes, scales, 0, values);
                    saturate(self.dtype, values);
                    from_f32(self.dtype, values, rows);
                }
            }
        }
    }

    /// Sets slots of a page of the slab to zero.
    pub(super) fn zero(&self, page: &mut [u8], runs: &[Range<u32>]) {
        self.clear(page, runs, Codec::zero);
    }

    /// Erases slots of a page of the slab. The other slots keep their bits.
    pub(super) fn erase(&self, page: &mut [u8], runs: &[Range<u32>]) {
        self.clear(page, runs, Codec::erase);
    }

    fn clear(&self, page: &mut [u8], runs: &[Range<u32>], of: ClearSlots) {
        if runs.iter().map(Range::len).sum::<usize>() == self.pages.shape().block_size as usize {
            return page.fill(0);
        }
        for (part, head) in heads(&self.pages) {
            let row = self.pages.section(part).row_bytes;
            let (codes, scales) = self.head_mut(page, part, head);
            match &self.codecs[part as usize] {
                Some(codec) => of(codec, codes, scales, runs),
                None => runs.iter().for_each(|run| codes[run.start as usize * row..run.end as usize * row].fill(0)),
            }
        }
    }

    /// Quantises the tokens of one head that fill a whole page, directly from the source.
    pub(super) fn write_whole(
        &self,
        page: &mut [u8],
        (part, head): (KeyOrValue, u32),
        layer: usize,
        run: &SlotRun,
        sources: &Sources<'_>,
        scratch: &mut [f32],
    ) {
        let Some(codec) = &self.codecs[part as usize] else {
            return write_rows(page, &self.pages, (part, head), layer, run, sources, Carrier::PLAIN);
        };
        let (bytes, rows) = &sources[part as usize];
        let (from, count) = (rows.at(layer, head as usize, run.token as usize), run.len as usize);
        let values = &mut scratch[..codec.elements()];
        if rows.token == rows.row {
            to_f32(self.dtype, &bytes[from..from + count * rows.row], values);
        } else {
            for (token, values) in values.chunks_exact_mut(codec.elements() / count).enumerate() {
                let from = from + token * rows.token;
                to_f32(self.dtype, &bytes[from..from + rows.row], values);
            }
        }
        let (codes, scales) = self.head_mut(page, part, head);
        codec.encode(values, codes, scales);
    }
}
