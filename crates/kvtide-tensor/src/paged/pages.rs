//! Operations on pages, in the implementation of their device: rows into pages, pages into their low-bit form and back,
//! slots to zero.
//!
//! ```text
//! open     slab page -> staging page     before a part of a quantised page is written
//! write    rows -> slab page, or staging page
//! seal     staging page -> slab page     when all slots are written, at the end of the write
//! ```
//!
//! Sealing rounds each value once. Opening gives the values of the codes, so sealing them again changes a value by at most
//! one more step. A part that is not quantised is copied both ways.

use std::cell::RefCell;
use std::ops::Range;

use kvtide_core::paged::{PageLayout, PageWrite, Seal, SlotRun, StagingContent, WritePlan};

use super::launched::Launched;
use super::portable::{self, Portable};
use super::rows::TokenRows;
use super::scratch::Scratch;
use super::slabs::{Holes, Slab, Slabs};
use crate::base::error::Result;
use crate::device::form::Form;
use crate::kernels::Carrier;
use crate::kernels::pages::{Sources, check_sources, each_block, heads, scatter, write_run};

impl Slabs {
    /// Prepares the staging pages of a plan for its rows: zeroes those with rows of another page, and dequantises pages that
    /// were sealed.
    pub(super) fn open(&self, plan: &WritePlan, scratch: &Scratch) -> Result<()> {
        let opened = |write: &&PageWrite| matches!(write.before, StagingContent::Other | StagingContent::Sealed);
        if !plan.pages().iter().any(|write| opened(&write)) {
            return Ok(());
        }
        match self.slab.form()? {
            Form::Launched(stream) => return Launched { stream, slabs: self }.open(plan.pages()),
            Form::Portable => return Portable { slabs: self }.open(plan.pages(), scratch),
            Form::Bytes(_) => {}
        }
        edit_with_scratch(&self.staging, &self.slab, scratch, |staging, slab, scratch| {
            for write in plan.pages().iter().filter(opened) {
                let staged = &mut staging[page_range(&self.shape.staged, write.staged, 0)];
                match write.before {
                    StagingContent::Sealed => {
                        let page = page_range(&self.shape.pages, write.page.block, write.page.layer);
                        self.shape.unseal(&slab[page], staged, scratch);
                    }
                    _ => staged.fill(0),
                }
            }
        })
    }

    /// Writes rows of some layers to the places in a plan, and quantises the pages that are then full.
    pub(super) fn write(
        &self,
        plan: &WritePlan,
        layers: Range<u32>,
        rows: &[TokenRows<'_>; 2],
        scratch: &Scratch,
    ) -> Result<()> {
        match self.slab.form()? {
            Form::Launched(stream) => Launched { stream, slabs: self }.write(plan, layers.clone(), rows)?,
            Form::Portable => Portable { slabs: self }.write(plan, layers.clone(), rows, scratch)?,
            Form::Bytes(_) => self.write_bytes(plan, layers.clone(), rows, scratch)?,
        }
        if !self.shape.pages.is_low_bit() {
            return Ok(());
        }
        let seals: Vec<_> = plan.completed(layers, self.shape.block_size()).collect();
        self.seal(&seals, scratch)
    }

    /// Like [`Slabs::write`], on bytes that the host can address.
    fn write_bytes(
        &self,
        plan: &WritePlan,
        layers: Range<u32>,
        rows: &[TokenRows<'_>; 2],
        scratch: &Scratch,
    ) -> Result<()> {
        if !self.shape.pages.is_low_bit() {
            return edit_with_rows(&self.slab, rows, |slab, sources| {
                scatter(slab, &self.shape.pages, layers.clone(), plan.runs(), sources)
            });
        }
        edit_with_rows(&self.slab, rows, |slab, sources| {
            check_sources(&self.shape.staged, layers.clone(), plan.runs(), sources);
            self.write_whole(plan, layers.clone(), slab, sources, scratch)
        })?;
        edit_with_rows(&self.staging, rows, |staging, sources| {
            self.stage(plan, layers.clone(), staging, sources);
            Ok(())
        })
    }

    /// Quantises whole pages that runs of a plan cover.
    fn write_whole(
        &self,
        plan: &WritePlan,
        layers: Range<u32>,
        target: &mut [u8],
        sources: &Sources<'_>,
        scratch: &Scratch,
    ) -> Result<()> {
        let shape = &self.shape;
        let whole: Vec<SlotRun> = plan.whole_runs(shape.block_size()).copied().collect();
        if whole.is_empty() {
            return Ok(());
        }
        let bytes = whole.len() * layers.len() * shape.staged.page_bytes();
        each_block(target, shape.pages.block_bytes(), &whole, bytes, |blocks| {
            scratch.with(|scratch| {
                for layer in layers.clone() {
                    for head in heads(&shape.pages) {
                        // Neighbouring tokens of a head, block by block, so that the source is read in order.
                        for (run, block) in blocks.iter_mut() {
                            let page = &mut block[page_range(&shape.pages, 0, layer)];
                            shape.write_whole(page, head, (layer - layers.start) as usize, run, sources, scratch);
                        }
                    }
                }
            })
        })
    }

    /// Writes a plan's rows to its staging pages.
    fn stage(&self, plan: &WritePlan, layers: Range<u32>, staging: &mut [u8], sources: &Sources<'_>) {
        let (first, layout) = (layers.start, &self.shape.staged);
        for write in plan.pages().iter().filter(|write| layers.contains(&write.page.layer)) {
            let page = &mut staging[page_range(layout, write.staged, 0)];
            let run = &plan.runs()[write.run as usize];
            write_run(page, layout, (write.page.layer - first) as usize, run, sources, Carrier::PLAIN);
        }
    }

    /// Quantises pages that are now full.
    pub(super) fn seal(&self, seals: &[Seal], scratch: &Scratch) -> Result<()> {
        if seals.is_empty() {
            return Ok(());
        }
        match self.slab.form()? {
            Form::Launched(stream) => return Launched { stream, slabs: self }.close(seals),
            Form::Portable => return Portable { slabs: self }.seal(seals, scratch),
            Form::Bytes(_) => {}
        }
        edit_with_scratch(&self.slab, &self.staging, scratch, |slab, staging, scratch| {
            for seal in seals {
                let page = &mut slab[page_range(&self.shape.pages, seal.page.block, seal.page.layer)];
                self.shape.seal(&staging[page_range(&self.shape.staged, seal.staged, 0)], page, scratch);
            }
        })
    }

    /// Zeroes slots of pages of one of the slabs.
    pub(super) fn zero(&self, slab: &Slab, pages: &[Holes]) -> Result<()> {
        if pages.is_empty() {
            return Ok(());
        }
        match slab.form()? {
            Form::Launched(stream) => {
                let launched = Launched { stream, slabs: self };
                let is_low_bit = slab.layout.is_low_bit();
                return if is_low_bit { launched.zero_codes(pages) } else { launched.zero_rows(slab, pages) };
            }
            Form::Portable if slab.layout.is_low_bit() => return Portable { slabs: self }.zero(pages),
            Form::Portable => {
                let mut all = pages.iter().flat_map(|page| page.runs.iter().map(move |run| (page, run.clone())));
                return all.try_for_each(|(page, run)| portable::zero(slab, page.block, page.layer, run));
            }
            Form::Bytes(_) => {}
        }
        let layout = &slab.layout;
        slab.edit(&[], |bytes, _| {
            for Holes { block, layer, runs } in pages {
                let page = &mut bytes[page_range(layout, *block, *layer)];
                match layout.is_low_bit() {
                    true => self.shape.zero(page, runs),
                    false => runs.iter().for_each(|run| zero_rows(page, layout, run)),
                }
            }
        })
    }
}

/// Zeroes neighbouring slots of a page, in each head of K and V.
pub(super) fn zero_rows(page: &mut [u8], layout: &PageLayout, slots: &Range<u32>) {
    for (part, head) in heads(layout) {
        let (start, row) = (layout.head_in_page(part, head).codes, layout.section(part).row_bytes);
        page[start + slots.start as usize * row..start + slots.end as usize * row].fill(0);
    }
}

/// The bytes of a page of a slab.
fn page_range(layout: &PageLayout, block: u32, layer: u32) -> Range<usize> {
    let start = layout.page_offset(block, layer);
    start..start + layout.page_bytes()
}

/// Runs `work` on the pages of one slab, those of the other, and scratch memory for the values of a head.
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

/// Runs `work` on a slab's pages and on the bytes of the rows to be written there.
fn edit_with_rows(
    slab: &Slab,
    rows: &[TokenRows<'_>; 2],
    work: impl Fn(&mut [u8], &Sources<'_>) -> Result<()>,
) -> Result<()> {
    let tensors: Vec<_> = rows.iter().filter_map(TokenRows::tensor).collect();
    let done = RefCell::new(Ok(()));
    slab.edit(&tensors, |pages, found| {
        let mut found = found.iter().copied();
        let sources = [0, 1].map(|part| (rows[part].bytes(&mut found), rows[part].rows));
        *done.borrow_mut() = work(pages, &sources);
    })?;
    done.into_inner()
}
