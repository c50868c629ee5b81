//! Measures a step's append: one token of each sequence in all layers, into pages, in one launch.

use std::cell::Cell;

use kvtide_bench::{Amount, Role};
use kvtide_cuda::{Direction, Rows, Span, Strip, copy_strips};

use super::{Bench, Measurement};
use crate::Result;
use crate::check;
use crate::numbers::{fill, samples};
use crate::pages::{Page, scattered};
use crate::sizes::Sizes;

/// The number of steps that run in turn, each into blocks of its own.
const STEPS: usize = 8;

fn slot(sizes: &Sizes, sequence: usize) -> usize {
    sequence % sizes.block
}

/// K and V of new tokens: layer, sequence, head.
fn rows<'a>(sizes: &Sizes, memory: Span<'a>) -> [Rows<'a>; 2] {
    let row = sizes.row();
    let token = sizes.kv_heads * row;
    let layer = sizes.sequences * token;
    [0, sizes.layers * layer].map(|offset| Rows { memory, offset, layer, head: row, token })
}

pub fn append(bench: &Bench<'_>) -> Result<Measurement> {
    let Bench { place, sizes, .. } = *bench;
    let Sizes { kv_heads, layers, sequences, times, .. } = *sizes;
    let page = Page::new(sizes, "bf16");
    let (row, block_bytes) = (sizes.row(), layers * page.bytes);
    let part_bytes = layers * sequences * kv_heads * row;
    // Block `step` of each sequence.
    let blocks = scattered(sequences * STEPS);
    let (new, pages) = (bench.memory(2 * part_bytes)?, bench.memory(blocks.len() * block_bytes)?);
    fill(place, new, 9, 1.0)?;
    let rows = rows(sizes, new);
    let known = page.moves(sizes, pages, rows, layers);
    let strips: Vec<Vec<Strip>> = (0..STEPS).map(|step| strips_of(sizes, &blocks, block_bytes, step)).collect();
    copy_strips(&place.stream, Direction::Scatter, &known, &strips[0])?;
    check::rows(place, [new, pages], row, sampled(sizes, &page, &blocks, 0))?;
    let amount = Amount::moved(2 * part_bytes, 2 * part_bytes);
    let turn = Cell::new(0);
    let next = || turn.replace((turn.get() + 1) % STEPS);
    let lanes = vec![
        bench.lane(Role::Ours, "kvtide", amount, || {
            Ok(copy_strips(&place.stream, Direction::Scatter, &known, &strips[next()])?)
        }),
        bench.copy(new, pages, amount),
    ];
    let lanes = lanes.into_iter().map(|lane| lane.times(times)).collect();
    bench.measured(format!("one token of {sequences} sequences, {layers} layers, into pages, bf16"), lanes)
}

/// Returns the places of some new rows, and their places after a step.
fn sampled(sizes: &Sizes, page: &Page, blocks: &[usize], step: usize) -> impl Iterator<Item = (usize, usize)> {
    let Sizes { kv_heads, layers, sequences, .. } = *sizes;
    samples(2 * layers * sequences * kv_heads).map(move |at| {
        let (head, sequence) = (at % kv_heads, at / kv_heads % sequences);
        let (layer, part) = (at / kv_heads / sequences % layers, at / kv_heads / sequences / layers);
        let start = (blocks[sequence * STEPS + step] * layers + layer) * page.bytes + page.parts[part].codes;
        (at * sizes.row(), start + head * page.parts[part].head + slot(sizes, sequence) * sizes.row())
    })
}

fn strips_of(sizes: &Sizes, blocks: &[usize], block_bytes: usize, step: usize) -> Vec<Strip> {
    let of = |sequence: usize| Strip {
        page: (blocks[sequence * STEPS + step] * block_bytes) as u64,
        token: sequence as u32,
        slot: slot(sizes, sequence) as u32,
        tokens: 1,
        layer: 0,
    };
    (0..sizes.sequences).map(of).collect()
}
