//! Low-bit pages between the slab and the staging slab.
//!
//! ```text
//! unseal   slab page -> staging page     before a part of a quantised page is written
//! stage    rows -> staging page
//! seal     staging page -> slab page     when all slots are written
//! ```
//!
//! Sealing rounds each value once; unsealing gives what the codes say, so that what is sealed again moves by at most one more
//! step. A part that is not quantised is copied both ways.

use std::cell::RefCell;
use std::ops::Range;

use kvtide_core::paged::{HeadPlace, KeyOrValue, PageWrite, Seal, SlotRun, StagingContent, WritePlan};

use super::launched::Slabs;
use super::scratch::Scratch;
use super::shape::PagedShape;
use super::slab::Slab;
use crate::base::error::Result;
use crate::kernels::Carrier;
use crate::kernels::pages::{Sources, each_block, heads, write_rows, write_run};
use crate::kernels::quantise::{from_f32, saturate, to_f32};

/// Bytes of a head of K or V in a page: its codes and its scales.
struct Head<'a> {
    codes: &'a mut [u8],
    scales: &'a mut [u8],
}

impl PagedShape {
    /// Where a head lies in a page of the slab: its codes, and its scales if it has any.
    fn head_of<'a>(&self, page: &'a mut [u8], part: KeyOrValue, head: u32) -> Head<'a> {
        let section = self.pages.section(part);
        let HeadPlace { codes, scales, .. } = self.pages.head_in_page(part, head);
        let (before, behind) = page.split_at_mut(scales.unwrap_or(page.len()));
        Head { codes: &mut before[codes..codes + section.head_bytes], scales: &mut behind[..section.scale_bytes] }
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
            let Head { codes, scales } = self.head_of(page, part, head);
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

    /// Puts the rows of a page of the slab into a staging page.
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

    /// Makes slots of a page of the slab zero.
    pub(super) fn zero(&self, page: &mut [u8], runs: &[Range<u32>]) {
        if runs.iter().map(Range::len).sum::<usize>() == self.pages.shape().block_size as usize {
            return page.fill(0);
        }
        for (part, head) in heads(&self.pages) {
            let row = self.pages.section(part).row_bytes;
            let Head { codes, scales } = self.head_of(page, part, head);
            match &self.codecs[part as usize] {
                Some(codec) => codec.zero(codes, scales, runs),
                None => runs.iter().for_each(|run| codes[run.start as usize * row..run.end as usize * row].fill(0)),
            }
        }
    }

    /// Quantises the tokens of one head that fill a page as they come in.
    fn write_whole(
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
        let Head { codes, scales } = self.head_of(page, part, head);
        codec.encode(values, codes, scales);
    }
}

/// The pages of both slabs during one call.
pub(super) struct Pages<'a> {
    pub shape: &'a PagedShape,
    pub slab: &'a Slab,
    pub staging: &'a Slab,
}

impl<'a> Pages<'a> {
    /// The same for a device's kernels, where it has some.
    pub fn launched(&self) -> Result<Option<Slabs<'a>>> {
        let &Pages { shape, slab, staging } = self;
        Ok(slab.stream()?.map(|stream| Slabs { stream, shape, slab, staging }))
    }

    /// Quantises the pages that a plan fills with one run each.
    pub fn write_whole(
        &self,
        plan: &WritePlan,
        layers: Range<u32>,
        target: &mut [u8],
        sources: &Sources<'_>,
        scratch: &Scratch,
    ) -> Result<()> {
        let shape = self.shape;
        let whole: Vec<SlotRun> = plan.runs().iter().filter(|run| !run.staged).copied().collect();
        if whole.is_empty() {
            return Ok(());
        }
        let bytes = whole.len() * layers.len() * shape.staged.page_bytes();
        each_block(target, shape.pages.block_bytes(), &whole, bytes, |pieces| {
            scratch.with(|scratch| {
                for layer in layers.clone() {
                    let start = layer as usize * shape.pages.page_bytes();
                    for head in heads(&shape.pages) {
                        // Neighbouring tokens of a head, block by block: the source is read in order.
                        for (run, block) in pieces.iter_mut() {
                            let page = &mut block[start..start + shape.pages.page_bytes()];
                            shape.write_whole(page, head, (layer - layers.start) as usize, run, sources, scratch);
                        }
                    }
                }
            })
        })
    }

    /// Makes the staging pages of a plan ready for its rows: zeros where another page's rows lie, and what was quantised.
    pub fn open(&self, plan: &WritePlan, scratch: &Scratch) -> Result<()> {
        let opened = |write: &&PageWrite| matches!(write.before, StagingContent::Other | StagingContent::Sealed);
        if !plan.pages().iter().any(|write| opened(&write)) {
            return Ok(());
        }
        if let Some(slabs) = self.launched()? {
            return slabs.open(plan.pages());
        }
        edit_with_scratch(self.staging, self.slab, scratch, |staging, slab, scratch| {
            for write in plan.pages().iter().filter(opened) {
                let staged = staged_page(self.shape, write.staged);
                match write.before {
                    StagingContent::Sealed => {
                        let from = self.slab.layout.page_offset(write.page.block, write.page.layer);
                        let page = &slab[from..from + self.slab.layout.page_bytes()];
                        self.shape.unseal(page, &mut staging[staged], scratch);
                    }
                    _ => staging[staged].fill(0),
                }
            }
        })
    }

    /// Puts a plan's rows into its staging pages.
    pub fn stage(&self, plan: &WritePlan, layers: Range<u32>, staging: &mut [u8], sources: &Sources<'_>) {
        let first = layers.start;
        for write in plan.pages().iter().filter(|write| layers.contains(&write.page.layer)) {
            let page = &mut staging[staged_page(self.shape, write.staged)];
            let run = &plan.runs()[write.run as usize];
            write_run(page, &self.shape.staged, (write.page.layer - first) as usize, run, sources, Carrier::PLAIN);
        }
    }

    /// Quantises pages that are full now.
    pub fn close(&self, seals: &[Seal], scratch: &Scratch) -> Result<()> {
        if seals.is_empty() {
            return Ok(());
        }
        if let Some(slabs) = self.launched()? {
            return slabs.close(seals);
        }
        edit_with_scratch(self.slab, self.staging, scratch, |slab, staging, scratch| {
            for seal in seals {
                let to = self.slab.layout.page_offset(seal.page.block, seal.page.layer);
                let page = &mut slab[to..to + self.slab.layout.page_bytes()];
                self.shape.seal(&staging[staged_page(self.shape, seal.staged)], page, scratch);
            }
        })
    }
}

/// Runs `work` on the pages of one slab, those of the other, and room for the values of a head.
fn edit_with_scratch(
    target: &Slab,
    source: &Slab,
    scratch: &Scratch,
    work: impl Fn(&mut [u8], &[u8], &mut [f32]),
) -> Result<()> {
    scratch.with(|scratch| {
        let scratch = RefCell::new(scratch);
        target.edit(&[source.storage()], |target, sources| {
            work(target, source.pages(sources[0]), &mut scratch.borrow_mut());
        })
    })?
}

fn staged_page(shape: &PagedShape, page: u32) -> Range<usize> {
    let start = shape.staged.page_offset(page, 0);
    start..start + shape.staged.page_bytes()
}
