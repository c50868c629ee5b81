//! Rows into pages: every layer of a call, K and V, in one launch.

use std::ops::Range;

use kvtide_core::paged::{KeyOrValue, PageLayout, PageWrite, SlotRun, WritePlan};
use kvtide_cuda::{Direction, QuantisedPage, Section, Stream, Strip, Strips, copy_strips};

use super::sources::Placed;
use super::staging::pages_of;
use crate::base::error::Result;
use crate::kernels::quantise::LaunchedRows;
use crate::paged::rows::TokenRows;
use crate::paged::{PagedShape, Slab};

/// Puts a plan's rows where it says.
pub(in crate::paged) fn scatter(
    stream: &Stream,
    slab: &Slab,
    plan: &WritePlan,
    layers: Range<u32>,
    rows: &[TokenRows<'_>; 2],
) -> Result<()> {
    let strip = |run: &SlotRun| strip(run, slab.layout.page_offset(run.block, layers.start), 0);
    let strips: Vec<Strip> = plan.runs().iter().map(strip).collect();
    let placed = Placed::new(rows, layers.len(), heads(&slab.layout), slab.tensor.device())?;
    put(stream, slab, layers.len(), &placed, &strips)
}

/// Puts a plan's rows into its staging pages.
pub(in crate::paged) fn stage(
    stream: &Stream,
    staging: &Slab,
    plan: &WritePlan,
    layers: Range<u32>,
    rows: &[TokenRows<'_>; 2],
) -> Result<()> {
    let strip = |write: &PageWrite| {
        let run = &plan.runs()[write.run as usize];
        strip(run, staging.layout.page_offset(write.staged, 0), write.page.layer - layers.start)
    };
    let written = plan.pages().iter().filter(|write| layers.contains(&write.page.layer));
    let strips: Vec<Strip> = written.map(strip).collect();
    if strips.is_empty() {
        return Ok(());
    }
    let placed = Placed::new(rows, layers.len(), heads(&staging.layout), staging.tensor.device())?;
    put(stream, staging, 1, &placed, &strips)
}

/// Quantises the pages that a plan fills with one run each.
pub(in crate::paged) fn seal_whole(
    stream: &Stream,
    shape: &PagedShape,
    slab: &Slab,
    plan: &WritePlan,
    layers: Range<u32>,
    rows: &[TokenRows<'_>; 2],
) -> Result<()> {
    if plan.runs().iter().all(|run| run.staged) {
        return Ok(());
    }
    let placed = Placed::new(rows, layers.len(), heads(&slab.layout), slab.tensor.device())?;
    let places = placed.rows();
    let page = |layer: u32, run: &SlotRun| QuantisedPage {
        page: slab.layout.page_offset(run.block, layer) as u64,
        rows: places.map(|rows| rows.at((layer - layers.start) as usize, 0, run.token as usize) as u64),
        slot: 0,
        tokens: run.len,
    };
    let whole = || plan.runs().iter().filter(|run| !run.staged);
    let pages: Vec<_> = layers.clone().flat_map(|layer| whole().map(move |run| page(layer, run))).collect();
    slab.launch(&placed.tensors(), |memory, tensors| {
        let spans = placed.spans(tensors);
        let rows = [0, 1].map(|part| {
            let (memory, rows) = (spans[part], &places[part]);
            LaunchedRows { memory, head: rows.head, token: rows.token, dtype: shape.dtype }
        });
        let of = pages_of(&shape.pages, shape.codecs.each_ref().map(Option::as_ref), memory, rows);
        Ok(kvtide_cuda::seal(stream, &of, &pages)?)
    })
}

fn put(stream: &Stream, slab: &Slab, layers: usize, placed: &Placed<'_>, strips: &[Strip]) -> Result<()> {
    let (layout, places) = (&slab.layout, placed.rows());
    slab.launch(&placed.tensors(), |pages, tensors| {
        let spans = placed.spans(tensors);
        let rows = [0, 1].map(|part| {
            let at = &places[part];
            let memory = spans[part];
            kvtide_cuda::Rows { memory, offset: at.offset, layer: at.layer, head: at.head, token: at.token }
        });
        let page_bytes = layout.page_bytes();
        let heads = heads(layout);
        let sections = KeyOrValue::BOTH.map(|part| section(layout, part));
        let call = Strips { pages, page_bytes, sections, rows, heads, layers, layer_bytes: page_bytes };
        Ok(copy_strips(stream, Direction::Scatter, &call, strips)?)
    })
}

fn strip(run: &SlotRun, page: usize, layer: u32) -> Strip {
    Strip { page: page as u64, token: run.token, slot: run.slot, tokens: run.len, layer }
}

/// Heads of K, and of V.
pub(super) fn heads(layout: &PageLayout) -> usize {
    layout.shape().num_kv_heads as usize
}

/// Where the codes of K or V lie in a page.
pub(super) fn section(layout: &PageLayout, part: KeyOrValue) -> Section {
    let section = layout.section(part);
    Section { offset: layout.head_in_page(part, 0).codes, head: section.head_bytes, row: section.row_bytes }
}
