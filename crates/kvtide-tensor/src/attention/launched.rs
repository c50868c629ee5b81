//! Attention with the kernels of a device: keys and values are read in place, and the result stays on the device or is
//! downloaded at the end.
//!
//! ```text
//! sources   tensors in place; host memory if the device can read it
//! launch    a checked call in plain numbers                   does not depend on the place of the result
//! download  output and sums, after all enqueued work is done
//! ```
//!
//! O(sequences and pages) on the host, plus the result's bytes.

use std::cell::Cell;
use std::ops::Range;

use candle_core::Tensor;
use kvtide_core::paged::{KeyOrValue, PageFormat};
use kvtide_cuda::{
    Attend, AttendKeys, AttendMask, AttendSequence, AttendStem, AttendTrees, HeadRows, PageMemory, PageSection,
    Reached, RowFormat, STAGED, Span, Stream, Words, attend,
};

use super::call::Call;
use super::call::asked::{Asked, Axes, CallSequence, Family, KeyPositions};
use super::call::kv_rows::{KvRows, ResolvedRows};
use super::output::Output;
use super::own_page::OwnPage;
use super::stem::{Stem, Stems};
use crate::base::error::Result;
use crate::base::memory::Budget;
use crate::device::edit::{inspect_spans, launch as launch_on};
use crate::paged::{PageRows, Slab};
use crate::tensor::source::Resolved;

/// The numbers of queries and keys of a sequence, and of blocks, from which on the kernels' integers are too small.
const QUERIES_END: usize = 1 << 24;
const INDEX_END: usize = 1 << 31;

/// Runs a whole call; returns false if the kernels do not support it.
pub(super) fn run(stream: &Stream, call: &Call<'_>, kv: &KvRows<'_>, output: &mut Output<'_>) -> Result<bool> {
    let mut out = stream.memory(output.bytes.len())?;
    let launched = enqueue(stream, call, kv, output.lse, |spans, sums| launch(stream, call, spans, out.span(), sums))?;
    if launched {
        stream.download(out.span(), output.bytes)?;
    }
    Ok(launched)
}

/// Like [`run`], with the output in a tensor of the device. Waits for the device only if sums are requested.
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

/// Enqueues the launches of `work` on the memory of a call's tensors, and downloads the sums if `lse` has room for them.
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

/// Enqueues a call; `spans` is the memory of its tensors, in their order. Returns false, and enqueues nothing, if the
/// kernels do not support the call.
fn launch(stream: &Stream, call: &Call<'_>, spans: &[Span<'_>], out: Span<'_>, lse: Span<'_>) -> Result<bool> {
    let ResolvedRows::Pages(pages) = call.rows() else {
        let blocks = Blocks { parts: SequencePart::all(&call.asked, None), ..Blocks::default() };
        return launch_over(stream, call, &blocks, Words::Host(&[]), spans, out, lse);
    };
    let parts = SequencePart::all(&call.asked, Some(pages));
    if parts.len() > call.asked.sequences.len() && call.asked.mask.is_some() {
        return Ok(false);
    }
    let blocks = Blocks::new(pages, parts);
    pages.tables.with(stream, &blocks.tables, |tables| launch_over(stream, call, &blocks, tables, spans, out, lse))
}

/// Like [`launch`], with the block tables of its pages.
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
            is_rotated: pages.slabs.shape.rotated,
            tables,
            tails: &blocks.tails,
        },
    };
    let (depths, seen) = trees(asked)?;
    let mask = mask.as_ref().zip(asked.mask.as_ref());
    let sequences = sequences(asked, blocks);
    let positions = blocks.positions(asked);
    let call = Attend {
        queries,
        sizes: asked.sizes,
        rules: asked.rules,
        keys,
        sequences: &sequences,
        stems: &if blocks.are_cut(asked) { Vec::new() } else { stems(call, &sequences) },
        trees: (!depths.is_empty()).then_some(AttendTrees { depths: &depths, seen: &seen }),
        mask: mask.map(|(memory, mask)| AttendMask { memory: memory.span(), strides: mask.strides }),
        positions: positions.as_deref().or(asked.positions.as_deref()),
        out,
        lse,
    };
    Ok(attend(stream, &call)?)
}

/// The sequences, divided where their queries read pages in different forms.
fn sequences(asked: &Asked<'_>, blocks: &Blocks) -> Vec<AttendSequence> {
    // The place of each tree in the lists of `trees`.
    let mut end = [0; 2];
    let places: Vec<[usize; 2]> = (asked.trees.iter())
        .map(|tree| {
            let (place, [nodes, words]) = (end, tree.as_ref().map_or([0; 2], |tree| [tree.len(), tree.bits().len()]));
            end = [end[0] + nodes, end[1] + words];
            place
        })
        .collect();
    let of = |(index, part): (usize, &SequencePart)| {
        let of = &asked.sequences[part.sequence];
        let place = if places.len() == 1 { 0 } else { part.sequence };
        let (table, tail) = blocks.sequences.get(index).copied().unwrap_or_default();
        AttendSequence {
            first_query: of.first_query + part.queries.start,
            queries: part.queries.len(),
            first_key: of.first_key,
            table,
            tail,
            keys: part.keys.runs(),
            start: of.start,
            nodes: asked.tree(part.sequence).map_or(0, Family::len),
            first_node: asked.first_node(part.sequence) + part.queries.start as i64,
            tree: places.get(place).copied().unwrap_or_default(),
        }
    };
    blocks.parts.iter().enumerate().map(of).collect()
}

/// The stems: common starts of several sequences of pages.
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
        // Below 2^32, because no list of queries is longer.
        queries: stem.queries.iter().map(|query| place(query).map(|at| at as u32)).collect(),
        positions: match asked.rules.alibi_slopes {
            Some(_) => stem.queries.iter().map(|&(sequence, query)| asked.position(sequence, query)).collect(),
            None => Vec::new(),
        },
    };
    stems.all.iter().enumerate().map(of_stem).collect()
}

/// The depths and the bits of all trees, one after the other.
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

fn head_rows<'a>(source: &Resolved<'_>, axes: Axes, memory: Span<'a>) -> HeadRows<'a> {
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

/// Queries of a sequence that read its pages in the same form: all of them, unless some pages are available both as floats
/// and quantised.
struct SequencePart {
    sequence: usize,
    queries: Range<usize>,
    /// The index of the queries' own page.
    own: usize,
    /// The keys that they may attend to.
    keys: KeyPositions,
}

impl SequencePart {
    /// The parts of all sequences. A sequence without queries is a part too.
    fn all(asked: &Asked<'_>, pages: Option<&PageRows<'_>>) -> Vec<SequencePart> {
        let mut parts = Vec::with_capacity(asked.sequences.len());
        for (sequence, of) in asked.sequences.iter().enumerate() {
            let first = OwnPage::of(asked, pages, sequence, 0);
            if first.queries.len() == of.queries {
                parts.push(SequencePart { sequence, queries: first.queries, own: first.place, keys: of.keys });
                continue;
            }
            let size = pages.map_or(1, PageRows::block_size);
            // A node's slot may be in a later page than its position.
            let is_in_order = asked.rules.is_causal && asked.tree(sequence).is_none();
            parts.extend(OwnPage::all(asked, pages, sequence).map(|OwnPage { queries, place: own }| {
                let keys = if is_in_order { of.keys.first((own + 1).saturating_mul(size)) } else { of.keys };
                SequencePart { sequence, queries, own, keys }
            }));
        }
        parts
    }
}

/// The block tables: those that all layers of a step share, and those that differ from layer to layer.
#[derive(Default)]
struct Blocks {
    parts: Vec<SequencePart>,
    /// The blocks of all parts, one after the other.
    tables: Vec<u32>,
    /// For each part with staged pages, its entries from the first staged page on; entries in the staging slab are marked.
    tails: Vec<u32>,
    /// For each part, the start of its blocks, and, if it has staged pages, the index of the first one and its place in the
    /// tails.
    sequences: Vec<(usize, Option<(usize, usize)>)>,
}

impl Blocks {
    fn new(pages: &PageRows<'_>, parts: Vec<SequencePart>) -> Self {
        let mut blocks = Blocks::default();
        for part in &parts {
            let listed = pages.listed(part.sequence).map_or(&[][..], |(listed, _)| listed);
            let listed = &listed[..part.keys.len().div_ceil(pages.block_size()).min(listed.len())];
            let (first, place) = (blocks.tables.len(), blocks.tails.len());
            blocks.tables.extend(listed.iter().map(|page| page.block));
            let staged = |place: usize| listed[place].staged.filter(|_| place >= part.own || !listed[place].is_sealed);
            let first_staged = (0..listed.len()).find(|&place| staged(place).is_some());
            let tail = first_staged.unwrap_or(listed.len())..listed.len();
            blocks.tails.extend(tail.map(|at| staged(at).map_or(listed[at].block, |staged| staged | STAGED)));
            blocks.sequences.push((first, first_staged.map(|block| (block, place))));
        }
        Blocks { parts, ..blocks }
    }

    /// True if some sequence has several parts.
    fn are_cut(&self, asked: &Asked<'_>) -> bool {
        self.parts.len() > asked.sequences.len()
    }

    /// The position of each query, needed if a part does not end with its sequence.
    fn positions(&self, asked: &Asked<'_>) -> Option<Vec<i64>> {
        let of = |part: &SequencePart| {
            part.queries.clone().map(|query| asked.position(part.sequence, query)).collect::<Vec<_>>()
        };
        self.are_cut(asked).then(|| self.parts.iter().flat_map(of).collect())
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

fn page_memory<'a>(slab: &Slab, layer: u32, storage: Option<Span<'a>>) -> PageMemory<'a> {
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
