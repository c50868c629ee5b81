//! Writes rows to pages: every layer of a call, K and V, in one launch.

use std::ops::Range;

use kvtide_core::paged::{KeyOrValue, PageWrite, SlotRun, WritePlan};
use kvtide_cuda::{Direction, QuantisedPage, Strip, Strips, copy_strips};

use super::slabs::{Launched, heads, quantised_pages, sections};
use super::sources::Placed;
use crate::base::error::Result;
use crate::kernels::quantise::LaunchedRows;
use crate::paged::rows::TokenRows;
use crate::paged::slabs::Slab;

impl Launched<'_> {
    /// Writes rows of some layers to the places in a plan. For low-bit pages, rows that cover a whole page go to the slab,
    /// and others to the staging slab.
    pub fn write(&self, plan: &WritePlan, layers: Range<u32>, rows: &[TokenRows<'_>; 2]) -> Result<()> {
        let slab = &self.slabs.slab;
        let placed = Placed::new(rows, layers.len(), heads(&slab.layout), slab.tensor.device())?;
        if self.slabs.shape.pages.is_low_bit() {
            self.seal_whole(plan, layers.clone(), &placed)?;
            return self.stage(plan, layers, &placed);
        }
        let strip = |run: &SlotRun| strip(run, slab.layout.page_offset(run.block, layers.start), 0);
        self.put(slab, layers.len(), &placed, &plan.runs().iter().map(strip).collect::<Vec<_>>())
    }

    /// Writes a plan's rows to its staging pages.
    fn stage(&self, plan: &WritePlan, layers: Range<u32>, placed: &Placed<'_>) -> Result<()> {
        let staging = &self.slabs.staging;
        let strip = |write: &PageWrite| {
            let run = &plan.runs()[write.run as usize];
            strip(run, staging.layout.page_offset(write.staged, 0), write.page.layer - layers.start)
        };
        let written = plan.pages().iter().filter(|write| layers.contains(&write.page.layer));
        let strips: Vec<Strip> = written.map(strip).collect();
        if strips.is_empty() { Ok(()) } else { self.put(staging, 1, placed, &strips) }
    }

    /// Quantises whole pages that runs of a plan cover.
    fn seal_whole(&self, plan: &WritePlan, layers: Range<u32>, placed: &Placed<'_>) -> Result<()> {
        let whole: Vec<&SlotRun> = plan.whole_runs(self.slabs.shape.block_size()).collect();
        if whole.is_empty() {
            return Ok(());
        }
        let (shape, places) = (&self.slabs.shape, placed.rows());
        let page = |layer: u32, run: &SlotRun| QuantisedPage {
            page: shape.pages.page_offset(run.block, layer) as u64,
            rows: places.map(|rows| rows.at((layer - layers.start) as usize, 0, run.token as usize) as u64),
            slot: 0,
            tokens: run.len,
        };
        let pages: Vec<_> = layers.clone().flat_map(|layer| whole.iter().map(move |run| page(layer, run))).collect();
        self.slabs.slab.launch(&placed.tensors(), |memory, tensors| {
            let spans = placed.spans(tensors);
            let rows = [0, 1].map(|part| {
                let (memory, rows) = (spans[part], &places[part]);
                LaunchedRows {
                    memory,
                    head: rows.head,
                    token: rows.token,
                    dtype: shape.row_dtype(KeyOrValue::BOTH[part]),
                }
            });
            let of = quantised_pages(&shape.pages, shape.codecs.each_ref().map(Option::as_ref), memory, rows);
            Ok(kvtide_cuda::seal(&self.stream, &of, &pages)?)
        })
    }

    fn put(&self, slab: &Slab, layers: usize, placed: &Placed<'_>, strips: &[Strip]) -> Result<()> {
        let (layout, places) = (&slab.layout, placed.rows());
        slab.launch(&placed.tensors(), |pages, tensors| {
            let spans = placed.spans(tensors);
            let rows = [0, 1].map(|part| {
                let (memory, at) = (spans[part], &places[part]);
                kvtide_cuda::Rows { memory, offset: at.offset, layer: at.layer, head: at.head, token: at.token }
            });
            let page_bytes = layout.page_bytes();
            let (heads, sections) = (heads(layout), sections(layout));
            let call = Strips { pages, page_bytes, sections, rows, heads, layers, layer_bytes: page_bytes };
            Ok(copy_strips(&self.stream, Direction::Scatter, &call, strips)?)
        })
    }
}

fn strip(run: &SlotRun, page: usize, layer: u32) -> Strip {
    Strip { page: page as u64, token: run.token, slot: run.slot, tokens: run.len, layer }
}
