//! Attention over a cache: launches the kernels that read keys and values in place.
//!
//! ```text
//! check   nothing reaches outside its memory
//! shape   selects the kernel, and its shared memory
//! plan    the number of shares of each sequence's keys, from sizes alone
//! launch  sequences with few rows, then with many; and the merge kernel if there are shares
//! ```
//!
//! Scores, sums and outputs are floats. If queries have two bytes, and keys and values have the same type or are low-bit,
//! tensor cores multiply: weights, and the values of low-bit codes, are first rounded to the queries' type, a relative error
//! of up to 2^-12 in f16 and 2^-9 in bf16 each. Everything else is multiplied as floats. A call costs O(rows * keys * dims),
//! and on the host O(sequences and other list entries).

mod args;
mod check;
mod plan;
mod rows;
mod shape;

use args::{Args, Numbers, ReadPart, ReadSection, ReadSequence, Shared, Strided};
use plan::{Work, shares};
use shape::{DIM_MAX, FEW_ROWS, Shape, stride};

pub use rows::{
    Attend, AttendKeys, AttendMask, AttendRules, AttendSequence, AttendSizes, AttendStem, AttendTrees, HeadRows,
    PageMemory, PageSection, RowFormat, STAGED, Words,
};

use crate::divisor::Divisor;
use crate::error::Result;
use crate::kernel::{ATTEND_MERGE, Grid};
use crate::span::Span;
use crate::stream::Stream;
use crate::unit::Unit;

/// Runs a call; returns false, and does nothing, if rows are too wide for the kernels.
pub fn attend(stream: &Stream, call: &Attend<'_>) -> Result<bool> {
    if call.sizes.dims().iter().any(|&dim| dim > DIM_MAX) || call.sizes.kv_heads > Grid::INNER_MAX as usize {
        return Ok(false);
    }
    check::check(call);
    // Sequences, followed by stems.
    let queries: Vec<usize> = call.sequences.iter().map(|of| of.queries).chain(stem_queries(call)).collect();
    if queries.iter().all(|&queries| queries == 0) {
        return Ok(true);
    }
    let Some(launches) = launches(stream, call, &queries) else { return Ok(false) };
    let dim = call.sizes.dims()[1];
    let members = Members::new(call);
    let work = queries.iter().enumerate().map(|(index, queries)| Work {
        rows: queries * call.sizes.query_heads,
        blocks: launches.iter().map(|launch| launch.row_tiles[index]).sum::<usize>() * call.sizes.kv_heads,
        keys: match call.sequences.get(index) {
            Some(of) => visible_keys(call, of).saturating_sub(members.shared(call, index)),
            None => call.stems[index - call.sequences.len()].keys,
        },
        is_part: index >= call.sequences.len() || members.of(index).is_some(),
    });
    let work: Vec<Work> = work.collect();
    let splits = shares(&work, stream.multiprocessors(), 4 * (dim + 2));
    let firsts = kept_rows(&work, &splits);
    let kept = firsts[work.len()];
    // Rows are read in pieces of 16 bytes.
    let states_bytes = (8 * kept).next_multiple_of(16);
    let mut workspace = stream.memory(states_bytes + 4 * kept * dim)?;
    let workspace = workspace.span();
    let mut numbers = NumberList::default();
    let sequences = read_sequences(call, &members, |index| {
        let first = if work[index].keeps(splits[index]) { firsts[index] as u64 } else { u64::MAX };
        (number(splits[index]), first)
    });
    let mut args = args(call, &mut numbers, &sequences);
    (args.split_states, args.split_rows) = (workspace.address(), workspace.address() + states_bytes as u64);
    let of_launch =
        |launch: &Launch| launch.row_tiles.iter().zip(&splits).map(|(tiles, splits)| tiles * splits).collect();
    let mut blocks: Vec<Vec<usize>> = launches.iter().map(of_launch).collect();
    let merged = |index: usize| {
        let of_stem = members.of(index).map_or(0, |(stem, _)| splits[call.sequences.len() + stem]);
        let is_whole = index >= call.sequences.len() || !work[index].keeps(splits[index]);
        if is_whole { 0 } else { merge_blocks(splits[index] + of_stem, work[index].rows, dim) }
    };
    blocks.push((0..work.len()).map(merged).collect());
    let ends: Vec<(usize, Numbers)> = blocks.iter().map(|blocks| numbers.add_ends(blocks)).collect();
    let listed = stream.list(&numbers.words)?;
    args.list = listed.list;
    for (launch, (blocks, ends)) in launches.into_iter().zip(&ends) {
        (args.parts, args.shared, args.ends) = (launch.parts, launch.shared, *ends);
        let mut grid = Grid::new([*blocks, call.sizes.kv_heads, 1], launch.shape.threads);
        grid.shared_bytes = number(launch.shared_bytes);
        stream.launch(launch.shape.kernel, grid, &args)?;
    }
    if let Some((blocks, ends)) = ends.last().filter(|_| kept > 0) {
        args.ends = *ends;
        stream.launch(ATTEND_MERGE, merge_grid(*blocks), &args)?;
    }
    Ok(true)
}

/// A kernel for the sequences and stems whose number of rows it is made for.
struct Launch {
    shape: Shape,
    parts: [ReadPart; 2],
    shared: Shared,
    shared_bytes: usize,
    /// The row tiles of each sequence and stem; 0 for those of another launch.
    row_tiles: Vec<usize>,
}

/// The kernels of a call with these queries per sequence and stem; `None` if their shared memory does not fit.
fn launches(stream: &Stream, call: &Attend<'_>, queries: &[usize]) -> Option<Vec<Launch>> {
    let formats = formats(call);
    let shapes = [false, true].map(|is_wide| Shape::new(call.queries.format, formats, call.sizes.dims(), is_wide));
    // Without tensor cores there is one kernel for any number of rows.
    let is_one = std::ptr::eq(shapes[0].kernel, shapes[1].kernel);
    let classes = match is_one {
        true => vec![(shapes[0], 1..=usize::MAX)],
        false => vec![(shapes[0], 1..=FEW_ROWS), (shapes[1], FEW_ROWS + 1..=usize::MAX)],
    };
    let mut launches = Vec::new();
    for (shape, class) in classes {
        let tiles = |queries: &usize| {
            let rows = queries * call.sizes.group();
            if class.contains(&rows) { rows.div_ceil(shape.rows) } else { 0 }
        };
        let row_tiles: Vec<usize> = queries.iter().map(tiles).collect();
        if row_tiles.iter().all(|&tiles| tiles == 0) {
            continue;
        }
        let parts = [0, 1].map(|part| part_of(call, part, &shape));
        let (shared, shared_bytes) = shape.shared(&parts, stream.shared_room())?;
        launches.push(Launch { shape, parts, shared, shared_bytes, row_tiles });
    }
    Some(launches)
}

/// The most keys of a sequence that some query attends to.
fn visible_keys(call: &Attend<'_>, of: &AttendSequence) -> usize {
    let keys = of.key_count();
    let Some(window) = call.rules.window.filter(|_| call.positions.is_none()) else { return keys };
    let in_window = usize::try_from(window + call.rules.sinks).unwrap_or(usize::MAX);
    keys.min(in_window.saturating_add(of.queries))
}

/// The index of the first kept row of each sequence, followed by the number of kept rows.
fn kept_rows(work: &[Work], splits: &[usize]) -> Vec<usize> {
    let mut firsts = vec![0];
    for (index, (work, &splits)) in work.iter().zip(splits).enumerate() {
        firsts.push(firsts[index] + if work.keeps(splits) { splits * work.rows } else { 0 });
    }
    firsts
}

fn stem_queries<'a>(call: &'a Attend<'_>) -> impl Iterator<Item = usize> + 'a {
    call.stems.iter().map(|stem| stem.queries.len())
}

/// The stems of sequences.
struct Members {
    /// For each sequence, its stem and the index of its first query there; empty if there are no stems.
    of: Vec<Option<(usize, usize)>>,
}

impl Members {
    fn new(call: &Attend<'_>) -> Self {
        let mut of = vec![None; if call.stems.is_empty() { 0 } else { call.sequences.len() }];
        for (stem, members) in call.stems.iter().enumerate() {
            for &(sequence, first_query) in &members.members {
                of[sequence] = Some((stem, first_query));
            }
        }
        Members { of }
    }

    fn of(&self, sequence: usize) -> Option<(usize, usize)> {
        *self.of.get(sequence)?
    }

    /// The number of keys that a sequence shares with its stem.
    fn shared(&self, call: &Attend<'_>, sequence: usize) -> usize {
        self.of(sequence).map_or(0, |(stem, _)| call.stems[stem].keys)
    }
}

/// Sequences in the format of the kernels, followed by stems; `planned` returns the number of shares of each, and the place
/// of their results.
fn read_sequences(call: &Attend<'_>, members: &Members, planned: impl Fn(usize) -> (u32, u64)) -> Vec<ReadSequence> {
    const NONE: u32 = u32::MAX;
    let count = call.sequences.len();
    let of_sequence = |(index, of): (usize, &AttendSequence)| {
        let (stem, stem_query) =
            members.of(index).map_or((NONE, 0), |(stem, first)| (number(count + stem), number(first)));
        let from = number(members.shared(call, index));
        let (splits, kept) = planned(index);
        ReadSequence { splits, kept, from, stem, stem_query, members: NONE, ..sequence(of) }
    };
    let mut first = 0;
    let of_stem = |(index, of): (usize, &AttendStem)| {
        let members = number(first);
        first += of.queries.len();
        let (splits, kept) = planned(count + index);
        let (queries, keys) = (number(of.queries.len()), [number(of.keys), 0]);
        let ReadSequence { table, tail_from, tail, .. } = sequence(&call.sequences[of.sequence]);
        // Low enough for any position.
        let start = -(1 << 62);
        ReadSequence {
            splits,
            kept,
            queries,
            table,
            tail_from,
            tail,
            keys,
            start,
            stem: NONE,
            members,
            ..ReadSequence::default()
        }
    };
    let sequences = call.sequences.iter().enumerate().map(of_sequence).collect::<Vec<_>>();
    let stems = call.stems.iter().enumerate().map(of_stem);
    sequences.into_iter().chain(stems).collect()
}

fn merge_grid(blocks: usize) -> Grid {
    let mut grid = Grid::new([blocks, 1, 1], 32 * MERGE_WARPS);
    grid.shared_bytes = (32 * MERGE_WARPS * size_of::<[f32; 4]>()) as u32;
    grid
}

/// The warps of a block that merges shares.
const MERGE_WARPS: usize = 4;

/// The number of blocks for a sequence's rows: one warp for each slice of 128 elements, or a whole block if there are more
/// shares than one warp reads alone. The kernel counts in the same way (`kernels/attend_merge.cu`).
fn merge_blocks(splits: usize, rows: usize, dim: usize) -> usize {
    const SLICE: usize = 128;
    const ALONE: usize = 4;
    let slices = rows * dim.div_ceil(SLICE).max(1);
    if splits > ALONE { slices } else { slices.div_ceil(MERGE_WARPS) }
}

fn formats(call: &Attend<'_>) -> [RowFormat; 2] {
    match &call.keys {
        AttendKeys::Rows { k, v } => [k.format, v.format],
        // If tensor cores multiply low-bit rows, the floats of the staging slab must have the queries' type.
        AttendKeys::Pages { slab, staging, .. } => {
            let staged = staging.sections.map(|section| section.format);
            let fits = staging.blocks == 0 || staged.iter().all(|&format| format == call.queries.format);
            if fits { slab.sections.map(|section| section.format) } else { [RowFormat::F32; 2] }
        }
    }
}

fn number(count: usize) -> u32 {
    u32::try_from(count).expect("a number of 32 bits")
}

fn strided(rows: &HeadRows<'_>) -> Strided {
    let [(first, count), (second, _)] = rows.pieces;
    Strided {
        pieces: [first, second].map(|start| rows.memory.address() + start as u64),
        batch: rows.batch as u64,
        head: rows.head as u64,
        token: rows.token as u64,
        first: number(count),
        unused: 0,
    }
}

/// K or V in the format of this shape's kernel.
fn part_of(call: &Attend<'_>, part: usize, shape: &Shape) -> ReadPart {
    let dim = call.sizes.dims()[part];
    let mut of = ReadPart { dim: number(dim), ..ReadPart::default() };
    let (format, numbers) = match &call.keys {
        AttendKeys::Rows { k, v } => {
            let rows = [k, v][part];
            of.rows = strided(rows);
            of.sections = [ReadSection { format: rows.format as u32, ..ReadSection::default() }; 2];
            let strides = [of.rows.batch, of.rows.head, of.rows.token];
            let pieces = of.rows.pieces.into_iter().zip(rows.pieces).filter(|(_, piece)| piece.1 > 0);
            (rows.format, pieces.map(|(address, _)| address).chain(strides).collect::<Vec<_>>())
        }
        AttendKeys::Pages { slab, staging, .. } => {
            let all = [slab, staging];
            of.sections = all.map(|pages| section(&pages.sections[part], dim));
            let read = all.into_iter().zip(of.sections);
            let read = read.filter(|(pages, own)| pages.blocks > 0 && own.format == of.sections[0].format);
            let starts = |(pages, own): (&&PageMemory<'_>, ReadSection)| {
                let page = [pages.memory.address() + pages.first as u64, pages.block as u64];
                [page[0], page[1], own.codes, own.head_codes, own.row_bytes.into()]
            };
            (slab.sections[part].format, read.flat_map(|(pages, own)| starts((&pages, own))).collect())
        }
    };
    let row_bytes = format.row_bytes(dim);
    // Of a row without elements nothing is read: it may have no memory.
    let unit = if row_bytes == 0 { 1 } else { Unit::WIDEST.dividing(numbers).bytes() };
    (of.unit, of.row_bytes, of.stride) = (number(unit), number(row_bytes), number(stride(row_bytes)));
    of.units = Divisor::new(row_bytes.div_ceil(16));
    of.is_direct = u32::from(shape.is_direct(call.queries.format, format, dim, unit));
    of
}

fn section(of: &PageSection, dim: usize) -> ReadSection {
    ReadSection {
        codes: of.codes as u64,
        scales: of.scales as u64,
        head_codes: of.head as u64,
        head_scales: of.scale_head as u64,
        row_bytes: number(of.format.row_bytes(dim)),
        format: of.format as u32,
    }
}

/// All numbers of a call in one list.
#[derive(Default)]
struct NumberList {
    words: Vec<u64>,
}

impl NumberList {
    fn add<T: bytemuck::Pod>(&mut self, items: &[T]) -> Numbers {
        let near = 8 * self.words.len() as u64;
        let bytes: &[u8] = bytemuck::cast_slice(items);
        self.words.extend(bytes.chunks(8).map(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_ne_bytes(word)
        }));
        Numbers { far: 0, near }
    }

    /// Adds the end of each sequence's blocks in one list of all blocks; returns the number of blocks too.
    fn add_ends(&mut self, blocks: &[usize]) -> (usize, Numbers) {
        let mut end = 0;
        let ends = blocks.iter().map(|blocks| {
            end += blocks;
            number(end)
        });
        let ends: Vec<u32> = ends.collect();
        (end, self.add(&ends))
    }

    fn add_some<T: bytemuck::Pod>(&mut self, items: Option<&[T]>) -> Numbers {
        items.map_or(Numbers::NONE, |items| self.add(items))
    }
}

fn args(call: &Attend<'_>, list: &mut NumberList, sequences: &[ReadSequence]) -> Args {
    let mut args: Args = bytemuck::Zeroable::zeroed();
    args.queries = strided(&call.queries);
    (args.out, args.sums) = (call.out.address(), call.lse.address());
    if let Some(mask) = call.mask {
        (args.mask, args.mask_strides) = (mask.memory.address(), mask.strides.map(|stride| stride as u64));
    }
    (args.window, args.sinks) = (call.rules.window.unwrap_or(0), call.rules.sinks);
    args.count = number(sequences.len());
    args.sequences = list.add(sequences);
    let members: Vec<[u32; 2]> = call.stems.iter().flat_map(|stem| stem.queries.iter().copied()).collect();
    args.members = list.add(&members);
    let slopes = call.rules.alibi_slopes;
    args.slopes = list.add_some(slopes);
    let positions: Option<Vec<i64>> =
        slopes.map(|_| call.stems.iter().flat_map(|stem| stem.positions.iter().copied()).collect());
    args.member_positions = list.add_some(positions.as_deref());
    args.positions = list.add_some(call.positions);
    args.logits = list.add_some(call.rules.sink_logits);
    args.seen = list.add_some(call.trees.map(|trees| trees.seen));
    args.depths = list.add_some(call.trees.map(|trees| trees.depths));
    (args.tables, args.tails) = (Numbers::NONE, Numbers::NONE);
    // Without a cap, scores are at once logarithms to base 2; with one, they are capped first. For the smallest caps the
    // quotient would be infinite.
    args.scale = call.rules.softcap.map_or(call.rules.scale, |cap| (call.rules.scale / cap).clamp(f32::MIN, f32::MAX));
    args.softcap = call.rules.softcap.unwrap_or(0.0);
    args.query_format = call.queries.format as u32;
    (args.is_ragged, args.is_causal) = (call.sizes.is_ragged.into(), call.rules.is_causal.into());
    args.query_heads = number(call.sizes.query_heads);
    args.group = Divisor::new(call.sizes.group());
    let each = call.sequences.first().map_or(0, |of| of.queries);
    args.has_shared_positions = u32::from(call.positions.is_some_and(|positions| positions.len() == each));
    args.block_size = Divisor::new(1);
    if let AttendKeys::Pages { slab, staging, block_size, is_rotated, tables, tails } = &call.keys {
        let all = [slab, staging];
        args.is_paged = 1;
        args.rotated = u32::from(is_rotated[0]) | u32::from(is_rotated[1]) << 1;
        args.slabs = all.map(|pages| pages.memory.address() + pages.first as u64);
        args.block_bytes = all.map(|pages| pages.block as u64);
        args.blocks = all.map(|pages| number(pages.blocks));
        args.block_size = Divisor::new(*block_size);
        args.tails = list.add(tails);
        args.tables = match tables {
            Words::Host(entries) => list.add(entries),
            Words::Device(span) => far(*span),
        };
    }
    args
}

fn far(span: Span<'_>) -> Numbers {
    Numbers { far: span.address(), near: u64::MAX }
}

fn sequence(of: &AttendSequence) -> ReadSequence {
    ReadSequence {
        positions: of.keys.map(|run| run.0),
        // Low enough for any position, and a difference to any position fits in 64 bits.
        start: of.start.max(-(1 << 62)),
        keys: of.keys.map(|run| number(run.1)),
        first_query: number(of.first_query),
        queries: number(of.queries),
        first_key: number(of.first_key),
        table: number(of.table),
        tail_from: of.tail.map_or(u32::MAX, |(block, _)| number(block)),
        tail: of.tail.map_or(0, |(_, place)| number(place)),
        nodes: number(of.nodes),
        first_node: of.first_node as i32,
        depths: number(of.tree[0]),
        seen: number(of.tree[1]),
        ..ReadSequence::default()
    }
}
