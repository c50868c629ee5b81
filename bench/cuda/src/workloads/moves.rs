//! Measures moves inside a buffer, and copying and zeroing of whole blocks.

use kvtide_bench::Amount;
use kvtide_cuda::{BufferRows, Move, copy_chains, shift, zero_pieces};

use super::{Bench, Measurement, gigabytes};
use crate::Result;
use crate::check;
use crate::numbers::{fill, samples};
use crate::pages::{Page, scattered};
use crate::sizes::Sizes;

/// A compaction: the second half of each stretch is moved to its front.
pub fn apart(bench: &Bench<'_>) -> Result<Measurement> {
    moved(bench, |rows| Move { source: rows / 2, target: 0, rows: rows / 2, unused: 0 })
}

/// A compaction whose target overlaps its source: three quarters move forward by a quarter.
pub fn overlapping(bench: &Bench<'_>) -> Result<Measurement> {
    moved(bench, |rows| Move { source: rows / 4, target: 0, rows: rows - rows / 4, unused: 0 })
}

fn moved(bench: &Bench<'_>, which: impl Fn(u32) -> Move) -> Result<Measurement> {
    let Bench { place, sizes, .. } = *bench;
    // K and V of all layers and heads, each with as many rows as fit.
    let (row, count) = (sizes.row(), 2 * sizes.layers * sizes.kv_heads);
    let rows = sizes.carried / (count * row);
    let moved = which(rows as u32);
    let bytes = count * rows * row;
    let (buffer, before) = (bench.memory(bytes)?, bench.memory(bytes)?);
    fill(place, before, 3, 1.0)?;
    place.copy(before, buffer, bytes)?;
    let stretches = BufferRows { count, rows, row };
    shift(&place.stream, buffer, stretches, &[moved])?;
    let (from, to, len) = (moved.source as usize, moved.target as usize, moved.rows as usize);
    let pairs = samples(count * len).map(|at| {
        let (start, index) = (at / len * rows, at % len);
        ((start + from + index) * row, (start + to + index) * row)
    });
    check::rows(place, [before, buffer], row, pairs)?;
    let carried = count * len * row;
    let amount = Amount::moved(carried, carried);
    let title = format!("{len} of {rows} rows to the front in each of {count} stretches, bf16, {}", gigabytes(carried));
    bench.beside_copy(title, amount, [before, buffer], || Ok(shift(&place.stream, buffer, stretches, &[moved])?))
}

/// Copies blocks of all layers from one half of the pool to the other.
pub fn blocks(bench: &Bench<'_>) -> Result<Measurement> {
    let Bench { place, sizes, .. } = *bench;
    let bytes = sizes.layers * Page::new(sizes, "bf16").bytes;
    let count = (sizes.carried / bytes).max(2);
    let (source, target) = (bench.memory(count * bytes)?, bench.memory(count * bytes)?);
    fill(place, source, 4, 1.0)?;
    let pieces: Vec<_> =
        scattered(count).into_iter().enumerate().map(|(from, to)| (from * bytes, to * bytes)).collect();
    copy_chains(&place.stream, (source, target), bytes, 1, &pieces)?;
    let row = sizes.row();
    let pairs = samples(count * bytes / row).map(|at| {
        let (from, to) = pieces[at * row / bytes];
        (from + at * row % bytes, to + at * row % bytes)
    });
    check::rows(place, [source, target], row, pairs)?;
    let amount = Amount::moved(count * bytes, count * bytes);
    let title = format!("{count} blocks of {} KiB copied, {}", bytes >> 10, gigabytes(count * bytes));
    bench.beside_copy(title, amount, [source, target], || {
        Ok(copy_chains(&place.stream, (source, target), bytes, 1, &pieces)?)
    })
}

/// Zeroes blocks of all layers, without reading.
pub fn zeros(bench: &Bench<'_>) -> Result<Measurement> {
    let Bench { place, sizes: Sizes { layers, carried, .. }, .. } = *bench;
    let bytes = layers * Page::new(bench.sizes, "bf16").bytes;
    let count = (carried / bytes).max(2);
    let (source, target) = (bench.memory(count * bytes)?, bench.memory(count * bytes)?);
    for span in [source, target] {
        fill(place, span, 5, 1.0)?;
    }
    // Every other block, so that the blocks between must stay unchanged.
    let starts: Vec<_> = (0..count).step_by(2).map(|block| block * bytes).collect();
    zero_pieces(&place.stream, target, bytes, &starts)?;
    for at in samples(count * bytes / 256).map(|at| at * 256) {
        let is_zero = check::bytes(place, target, at, 256)?.iter().all(|&byte| byte == 0);
        if is_zero != (at / bytes).is_multiple_of(2) {
            return Err(
                format!("byte {at} is in a block that was {}made zero", if is_zero { "not " } else { "" }).into()
            );
        }
    }
    let all: Vec<_> = scattered(count).into_iter().map(|block| block * bytes).collect();
    let amount = Amount::moved(0, count * bytes);
    let title = format!("{count} blocks of {} KiB made zero, {}", bytes >> 10, gigabytes(count * bytes));
    bench.beside_copy(title, amount, [source, target], || Ok(zero_pieces(&place.stream, target, bytes, &all)?))
}
