//! Attention by the kernels of a device: keys and values are read where they lie, and the result stays on the device or comes to
//! the host at the end.
//!
//! ```text
//! sources   tensors where they are; the host's memory where the device reads it
//! launch    a checked call in plain numbers                   nothing of it knows where the result goes
//! download  output and sums, once all work that was enqueued is done
//! ```
//!
//! O(sequences and pages) on the host, beside the result's bytes.

use std::cell::Cell;

use candle_core::Tensor;
use kvtide_core::paged::{KeyOrValue, PageFormat};
use kvtide_cuda::{
    Attend, AttendKeys, AttendMask, AttendSequence, AttendStem, AttendTrees, HeadRows, PageMemory, PageSection,
    Reached, RowFormat, STAGED, Span, Stream, Words, attend,
};

use super::call::Call;
use super::call::asked::{Asked, Axes, CallSequence, Family};
use super::call::kv_rows::{KvRows, ResolvedRows};
use super::output::Output;
use super::stem::{Stem, Stems};
use crate::base::error::Result;
use crate::base::memory::Budget;
use crate::device::edit::{inspect_spans, launch as launch_on};
use crate::paged::{PageRows, Slab};
use crate::tensor::source::Resolved;

/// Queries and keys of a sequence, and blocks, from which on the kernels' numbers are too small.
const QUERIES_END: usize = 1 << 24;
const INDEX_END: usize = 1 << 31;

/// Runs a whole call; false where it is none for kernels.
pub(super) fn run(stream: &Stream, call: &Call<'_>, kv: &KvRows<'_>, output: &mut Output<'_>) -> Result<bool> {
    let mut out = stream.memory(output.bytes.len())?;
    let launched = enqueue(stream, call, kv, output.lse, |spans, sums| launch(stream, call, spans, out.span(), sums))?;
    if launched {
        stream.download(out.span(), output.bytes)?;
    }
    Ok(launched)
}

/// The same, its output in a tensor of the device; nothing waits for it unless sums are wanted.
pub(super) fn run_onto(
    stream: &Stream,
    call: &Call<'_>,
    kv: &KvRows<'_>,
    out: &Tensor,
    lse: &mut [f32],
) -> Result<bool> {
    enqueue(stream, call, kv, lse, |spans, sums| {
        let launched = Cell::new(true);
        launch_on(out, &[], |out, _| {
            launched.set(launch(stream, call, spans, out, sums)?);
            Ok(())
        })?;
        Ok(launched.get())
    })
}

/// Enqueues what `work` launches on the memory of a call's tensors, and brings the sums back if there is room for them.
fn enqueue(
    stream: &Stream,
    call: &Call<'_>,
    kv: &KvRows<'_>,
    lse: &mut [f32],
    work: impl FnOnce(&[Span<'_>], Span<'_>) -> Result<bool>,
) -> Result<bool> {
    call.asked.check_stop()?;
    let too_many = |of: &CallSequence| of.queries >= QUERIES_END || of.keys.len() >= INDEX_END;
    let has_too_many_blocks = match call.rows() {
        ResolvedRows::Strided { .. } => false,
        ResolvedRows::Pages(pages) => {
            [&pages.slabs.slab, &pages.slabs.staging].iter().any(|of| of.blocks as usize >= INDEX_END)
        }
    };
    if call.asked.sequences.iter().any(too_many) || has_too_many_blocks {
        return Ok(false);
    }
    let mut sums = stream.memory(4 * call.rows_out())?;
    let tensors = call.tensors();
    let present: Vec<_> = tensors.iter().flatten().copied().collect();
    let launched = inspect_spans(&present, |spans| {
        kv.check()?;
        work(spans, sums.span())
    })?;
    if launched && !lse.is_empty() {
        stream.download(sums.span(), bytemuck::cast_slice_mut(lse))?;
    }
    Ok(launched)
}

/// Enqueues a call; its tensors' memory comes in their order. False, and nothing was enqueued, where it is none for kernels.
fn launch(stream: &Stream, call: &Call<'_>, spans: &[Span<'_>], out: Span<'_>, lse: Span<'_>) -> Result<bool> {
    let ResolvedRows::Pages(pages) = call.rows() else {
        return launch_over(stream, call, &Blocks::default(), Words::Host(&[]), spans, out, lse);
    };
    let blocks = Blocks::new(pages);
    pages.tables.with(stream, &blocks.tables, |tables| launch_over(stream, call, &blocks, tables, spans, out, lse))
}

/// The same, with the tables of its pages.
fn launch_over(
    stream: &Stream,
    call: &Call<'_>,
    blocks: &Blocks,
    tables: Words<'_>,
    spans: &[Span<'_>],
    out: Span<'_>,
    lse: Span<'_>,
) -> Result<bool> {
    let asked = &call.asked;
    let mut spans = spans.iter().copied();
    let mut reached = Vec::new();
    let own = [Some(call.queries()), call.rows().sources()[0], call.rows().sources()[1]];
    for source in own.into_iter().flatten() {
        reached.push(source.host_bytes().map(|bytes| stream.reach(bytes)).transpose()?);
    }
    let mask = asked.mask.as_ref().map(|mask| stream.reach(mask.bytes)).transpose()?;
    let axes = call.rows().axes();
    let mut of = |place: usize, source: &Resolved<'_>| {
        let memory = reached[place].as_ref().map(Reached::span).or_else(|| spans.next()).unwrap_or(Span::of(&[]));
        head_rows(source, axes, memory)
    };
    let queries = of(0, call.queries());
    let keys = match call.rows() {
        ResolvedRows::Strided { k, v, .. } => AttendKeys::Rows { k: of(1, k), v: of(2, v) },
        ResolvedRows::Pages(pages) => AttendKeys::Pages {
            slab: page_memory(&pages.slabs.slab, pages.layer(), spans.next()),
            staging: page_memory(&pages.slabs.staging, 0, spans.next()),
            block_size: pages.block_size(),
            is_rotated: pages.slabs.shape.hadamard,
            tables,
            tails: &blocks.tails,
        },
    };
    let (depths, seen) = trees(asked)?;
    let mask = mask.as_ref().zip(asked.mask.as_ref());
    let sequences = sequences(asked, blocks);
    let call = Attend {
        queries,
        sizes: asked.sizes,
        rules: asked.rules,
        keys,
        sequences: &sequences,
        stems: &stems(call, &sequences),
        lengths: None,
        trees: (!depths.is_empty()).then_some(AttendTrees { depths: &depths, seen: &seen }),
        mask: mask.map(|(memory, mask)| AttendMask { memory: memory.span(), strides: mask.strides }),
        positions: asked.positions.as_deref(),
        out,
        lse,
    };
    Ok(attend(stream, &call)?)
}

/// The sequences.
fn sequences(asked: &Asked<'_>, blocks: &Blocks) -> Vec<AttendSequence> {
    let (mut tree, is_shared) = ([0; 2], asked.trees.len() == 1);
    let of = |(index, of): (usize, &CallSequence)| {
        let (found, at) = (asked.tree(index), tree);
        if let Some(found) = found.filter(|_| !is_shared) {
            tree = [at[0] + found.len(), at[1] + found.bits().len()];
        }
        let (table, tail) = blocks.sequences.get(index).copied().unwrap_or_default();
        AttendSequence {
            first_query: of.first_query,
            queries: of.queries,
            first_key: of.first_key,
            table,
            tail,
            keys: of.keys.runs(),
            start: of.start,
            nodes: found.map_or(0, Family::len),
            tree: at,
        }
    };
    asked.sequences.iter().enumerate().map(of).collect()
}

/// What several sequences of pages begin with.
fn stems(call: &Call<'_>, sequences: &[AttendSequence]) -> Vec<AttendStem> {
    let (asked, ResolvedRows::Pages(pages)) = (&call.asked, call.rows()) else { return Vec::new() };
    let stems = Stems::new(asked, pages, AttendStem::GRAIN);
    let members_of = |stem: usize| {
        let of = (0..sequences.len()).filter_map(|sequence| Some((sequence, stems.member(sequence)?)));
        of.filter(move |(_, member)| member.stem == stem).map(|(sequence, member)| (sequence, member.first_query))
    };
    let place = |&(sequence, query): &(usize, usize)| match asked.sizes.is_ragged {
        true => [0, sequences[sequence].first_query + query],
        false => [sequence, query],
    };
    let of_stem = |(index, stem): (usize, &Stem)| AttendStem {
        sequence: stem.sequence,
        keys: stem.keys,
        members: members_of(index).collect(),
        // Fewer than 2^32: no list of queries is longer.
        queries: stem.queries.iter().map(|query| place(query).map(|at| at as u32)).collect(),
    };
    stems.all.iter().enumerate().map(of_stem).collect()
}

/// The depths and the bits of all trees, one behind the other.
fn trees(asked: &Asked<'_>) -> Result<(Vec<u32>, Vec<u64>)> {
    let (mut depths, mut seen) = (Vec::new(), Vec::new());
    for tree in asked.trees.iter().flatten() {
        let bytes = size_of_val(tree.depths()) + size_of_val(tree.bits());
        let refused = |_| Budget::process().refusal(bytes as u64);
        depths.try_reserve(tree.len()).map_err(refused)?;
        seen.try_reserve(tree.bits().len()).map_err(refused)?;
        depths.extend_from_slice(tree.depths());
        seen.extend_from_slice(tree.bits());
    }
    Ok((depths, seen))
}

pub(super) fn head_rows<'a>(source: &Resolved<'_>, axes: Axes, memory: Span<'a>) -> HeadRows<'a> {
    let (strides, pieces) = source.layout();
    HeadRows {
        memory,
        format: row_format(source.dtype.page_format()),
        pieces,
        batch: if axes.rank == Axes::BATCHED.rank { strides[0] } else { 0 },
        head: strides[axes.heads],
        token: strides[axes.tokens],
    }
}

/// Where pages lie: what all layers of a step share, and apart from it what differs from layer to layer.
#[derive(Default)]
struct Blocks {
    /// The blocks of all sequences, one behind the other.
    tables: Vec<u32>,
    /// Of each sequence that has staged pages its entries from the first one on: those of the staging slab marked.
    tails: Vec<u32>,
    /// Where the blocks of each sequence begin, and from which of them on they are in the tails, and where there.
    sequences: Vec<(usize, Option<(usize, usize)>)>,
}

impl Blocks {
    fn new(pages: &PageRows<'_>) -> Self {
        let mut blocks = Blocks::default();
        for sequence in 0..pages.count() {
            let listed = pages.listed(sequence).map_or(&[][..], |(listed, _)| listed);
            let (first, place) = (blocks.tables.len(), blocks.tails.len());
            blocks.tables.extend(listed.iter().map(|page| page.block));
            let staged = listed.iter().position(|page| page.staged.is_some());
            let tail = &listed[staged.unwrap_or(listed.len())..];
            blocks.tails.extend(tail.iter().map(|page| page.staged.map_or(page.block, |staged| staged | STAGED)));
            blocks.sequences.push((first, staged.map(|block| (block, place))));
        }
        blocks
    }
}

fn row_format(format: PageFormat) -> RowFormat {
    match format {
        PageFormat::F16 => RowFormat::F16,
        PageFormat::BF16 => RowFormat::Bf16,
        PageFormat::F8E4M3 => RowFormat::F8E4M3,
        PageFormat::Q8 => RowFormat::Q8,
        PageFormat::Q4 => RowFormat::Q4,
        PageFormat::F32 | PageFormat::U8 => RowFormat::F32,
    }
}

pub(super) fn page_memory<'a>(slab: &Slab, layer: u32, storage: Option<Span<'a>>) -> PageMemory<'a> {
    let layout = &slab.layout;
    let section = |part: KeyOrValue| {
        let (section, place) = (layout.section(part), layout.head_in_page(part, 0));
        PageSection {
            format: row_format(section.format),
            codes: place.codes,
            head: section.head_bytes,
            scales: place.scales.unwrap_or(0),
            scale_head: section.scale_bytes,
        }
    };
    PageMemory {
        memory: slab.span(storage.unwrap_or(Span::of(&[]))),
        first: layout.page_offset(0, layer),
        page: layout.page_bytes(),
        block: layout.block_bytes(),
        blocks: slab.blocks as usize,
        sections: KeyOrValue::BOTH.map(section),
    }
}
