//! Copies rows of tokens into the pages of a slab, and back.
//!
//! ```text
//! source   layer 0: head 0 [ token 0, 1, 2, ... ]  head 1 [ ... ]     rows at three strides
//! page     head 0 [ slot 0, 1, ... ]  head 1 [ ... ]                  rows of a head are contiguous
//! ```
//!
//! A run of one head within a block is one copy if its tokens are also contiguous in the source. Bounds are checked once per
//! call, before the first byte moves. Large calls are shared among threads, by block or by head, and use non-temporal
//! stores.

use std::ops::Range;
use std::sync::Mutex;

use kvtide_core::paged::{KeyOrValue, PageLayout, PageRead, SlotRun};

use super::stream::Carrier;
use crate::base::error::Result;
use crate::base::lock::lock;
use crate::base::threads::{threads, try_share};

/// The bytes that one thread takes at a time. Fewer than twice as many are not shared.
const SHARE_BYTES: usize = 1 << 20;

/// Jobs per thread in a large write: enough that the threads finish at about the same time.
const JOBS: usize = 4;

/// The places in a source of a call's rows of K or V.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RowPlaces {
    /// The byte offset of the first row.
    pub offset: usize,
    /// The distance from one layer to the next in bytes.
    pub layer: usize,
    /// The distance from one head to the next in bytes.
    pub head: usize,
    /// The distance from one token to the next in bytes.
    pub token: usize,
    /// The bytes of a row.
    pub row: usize,
}

impl RowPlaces {
    /// The byte offset of a row.
    pub fn at(&self, layer: usize, head: usize, token: usize) -> usize {
        self.offset + layer * self.layer + head * self.head + token * self.token
    }

    /// The byte offset after the last of these rows.
    fn reach(&self, layers: usize, heads: usize, tokens: usize) -> usize {
        if layers * heads * tokens * self.row == 0 { 0 } else { self.at(layers - 1, heads - 1, tokens - 1) + self.row }
    }
}

/// Copies `count` rows, which are `rows.token` bytes apart in `source` from `from` on, to contiguous rows.
fn copy_rows(stores: Carrier, target: &mut [u8], source: &[u8], from: usize, rows: &RowPlaces, count: usize) {
    if rows.token == rows.row || count == 1 {
        return stores.carry(&mut target[..count * rows.row], &source[from..from + count * rows.row]);
    }
    for (token, row) in target[..count * rows.row].chunks_exact_mut(rows.row.max(1)).enumerate() {
        let at = from + token * rows.token;
        row.copy_from_slice(&source[at..at + rows.row]);
    }
}

/// The rows of a call: the bytes of K and of V, and the places of the rows in them.
pub(crate) type Sources<'a> = [(&'a [u8], RowPlaces); 2];

/// Copies tokens into the layers `layers` of the pages of a slab that keeps rows unquantised.
pub(crate) fn scatter(
    target: &mut [u8],
    layout: &PageLayout,
    layers: Range<u32>,
    runs: &[SlotRun],
    sources: &Sources<'_>,
) -> Result<()> {
    check_sources(layout, layers.clone(), runs, sources);
    let tokens: usize = runs.iter().map(|run| run.len as usize).sum();
    let bytes = tokens * layers.len() * token_bytes(layout);
    let stores = Carrier::of(bytes);
    each_block(target, layout.block_bytes(), runs, bytes, |pieces| {
        for layer in layers.clone() {
            let start = layer as usize * layout.page_bytes();
            for (part, head) in heads(layout) {
                // Neighbouring tokens of a head, block by block, so that the source is read in order.
                for (run, block) in pieces.iter_mut() {
                    let page = &mut block[start..start + layout.page_bytes()];
                    write_rows(page, layout, (part, head), (layer - layers.start) as usize, run, sources, stores);
                }
            }
        }
        stores.settle();
        Ok(())
    })
}

/// Every head of K, then every head of V.
pub(crate) fn heads(layout: &PageLayout) -> impl Iterator<Item = (KeyOrValue, u32)> + use<> {
    let heads = layout.shape().num_kv_heads;
    KeyOrValue::BOTH.into_iter().flat_map(move |part| (0..heads).map(move |head| (part, head)))
}

/// Copies a run of tokens of one layer into a page.
pub(crate) fn write_run(
    page: &mut [u8],
    layout: &PageLayout,
    layer: usize,
    run: &SlotRun,
    sources: &Sources<'_>,
    stores: Carrier,
) {
    for head in heads(layout) {
        write_rows(page, layout, head, layer, run, sources, stores);
    }
}

/// Copies a run of tokens of one head into its page.
pub(crate) fn write_rows(
    page: &mut [u8],
    layout: &PageLayout,
    (part, head): (KeyOrValue, u32),
    layer: usize,
    run: &SlotRun,
    sources: &Sources<'_>,
    stores: Carrier,
) {
    let (bytes, rows) = &sources[part as usize];
    if rows.row > 0 {
        let start = layout.head_in_page(part, head).codes + run.slot as usize * rows.row;
        let from = rows.at(layer, head as usize, run.token as usize);
        copy_rows(stores, &mut page[start..], bytes, from, rows, run.len as usize);
    }
}

/// Panics if rows reach outside their memory.
pub(crate) fn check_sources(layout: &PageLayout, layers: Range<u32>, runs: &[SlotRun], sources: &Sources<'_>) {
    let tokens = runs.iter().map(|run| (run.token + run.len) as usize).max().unwrap_or(0);
    let heads = layout.shape().num_kv_heads as usize;
    for (bytes, rows) in sources {
        assert!(rows.reach(layers.len(), heads, tokens) <= bytes.len(), "rows reach outside their memory");
    }
}

/// The bytes of one token of one layer, K and V.
fn token_bytes(layout: &PageLayout) -> usize {
    let heads = layout.shape().num_kv_heads as usize;
    KeyOrValue::BOTH.iter().map(|&part| heads * layout.section(part).row_bytes).sum()
}

/// A run and the bytes of its block.
pub(crate) type BlockRun<'r, 'b> = (&'r SlotRun, &'b mut [u8]);

/// The number of threads for a call that moves this many bytes.
pub(crate) fn jobs_at_once(bytes: usize) -> Result<usize> {
    if bytes < 2 * SHARE_BYTES { Ok(1) } else { threads() }
}

/// Calls `work` with all runs and the bytes of their blocks. If `bytes`, the number of bytes that are moved in all, is large
/// enough, the runs are divided among several threads.
pub(crate) fn each_block(
    target: &mut [u8],
    block_bytes: usize,
    runs: &[SlotRun],
    bytes: usize,
    work: impl Fn(&mut [BlockRun<'_, '_>]) -> Result<()> + Sync,
) -> Result<()> {
    let mut sorted: Vec<&SlotRun> = runs.iter().collect();
    sorted.sort_unstable_by_key(|run| run.block);
    let (mut pieces, mut rest, mut start) = (Vec::with_capacity(runs.len()), target, 0);
    for run in sorted {
        let skip = (run.block as usize).checked_sub(start).expect("each block once");
        let (_, from) = rest.split_at_mut(skip * block_bytes);
        let (block, behind) = from.split_at_mut(block_bytes);
        pieces.push((run, block));
        (rest, start) = (behind, run.block as usize + 1);
    }
    pieces.sort_unstable_by_key(|(run, _)| run.token);
    if jobs_at_once(bytes)? == 1 {
        return work(&mut pieces);
    }
    let per_job = (pieces.len() / (JOBS * threads()?)).max(1);
    each_job(&mut pieces.chunks_mut(per_job).collect::<Vec<_>>(), |pieces| work(pieces))
}

/// Calls `work` with each job, on several threads.
fn each_job<T: Send>(pieces: &mut [T], work: impl Fn(&mut T) -> Result<()> + Sync) -> Result<()> {
    let jobs: Vec<_> = pieces.iter_mut().map(Mutex::new).collect();
    try_share(jobs.len(), jobs.len(), |job| work(&mut lock(&jobs[job])))
}

/// Calls `work` with pages and the rows of each head in `out` that they fill; divided among several threads if large enough.
/// `out` is `[heads, tokens, row]`, and the pages have its tokens in order, `block_size` each except the last.
pub(crate) fn each_rows(
    out: &mut [u8],
    heads: usize,
    pages: &[PageRead],
    page_bytes: usize,
    row: usize,
    work: impl Fn(&[PageRead], &mut [&mut [u8]]) -> Result<()> + Sync,
) -> Result<()> {
    let tokens: usize = pages.iter().map(|page| page.tokens as usize).sum();
    assert_eq!(out.len(), heads * tokens * row, "room for each row");
    if out.is_empty() {
        return Ok(());
    }
    let shared = jobs_at_once(out.len())? > 1;
    let pages_per_job = if shared { (pages.len() / (JOBS * threads()?)).max(1) } else { pages.len() };
    let groups = pages.chunks(pages_per_job);
    let mut jobs: Vec<_> = groups.map(|pages| (pages, Vec::with_capacity(heads))).collect();
    for out in out.chunks_exact_mut(tokens * row) {
        for ((_, rows), out) in jobs.iter_mut().zip(out.chunks_mut(pages_per_job * page_bytes)) {
            rows.push(out);
        }
    }
    each_job(&mut jobs, |(pages, rows)| work(pages, rows))
}
