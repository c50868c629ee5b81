//! Measures attention of one query for each sequence, which is bound by reading K and V once.

use std::cell::Cell;

use kvtide_bench::{Amount, Role};
use kvtide_cuda::{RowFormat, Words};

use super::keys::{Keys, Pool};
use super::queries::Queries;
use super::{Bench, Measurement};
use crate::Result;
use crate::sizes::Sizes;

/// The largest errors of outputs, whose values are at most 1: in bf16, and over q8.
pub const BF16_MOST: f64 = 0.008;
const Q8_MOST: f64 = 0.025;

pub fn measure(bench: &Bench<'_>) -> Result<Measurement> {
    let sizes = bench.sizes;
    let Sizes { sequences, keys: count, kv_heads, query_heads, dim, .. } = *sizes;
    let keys = Keys::new(bench)?;
    let pages = Pool::new(bench, &keys, RowFormat::Bf16)?;
    let low = Pool::new(bench, &keys, RowFormat::Q8)?;
    let queries = Queries::new(bench, sequences, 1)?;
    let amount = Amount::moved(2 * sizes.keys_part(), 0);
    let low_amount = Amount::moved(low.layer_bytes(keys.blocks.len()), 0);
    let listed: Vec<u32> = keys.blocks.iter().map(|&block| block as u32).collect();
    let (rows, scratch) = (keys.rows, bench.memory(sizes.keys_part())?);
    let told = pages.with_tables(Words::Host(&listed));
    let contiguous = keys.contiguous(sizes);
    queries.attend(contiguous)?;
    queries.check("contiguous", rows, false, BF16_MOST)?;
    for layer in 0..sizes.pool_layers {
        queries.attend(pages.layer(layer))?;
        queries.check("pages", rows, true, BF16_MOST)?;
        queries.attend(low.layer(layer))?;
        queries.check("q8 pages", rows, true, Q8_MOST)?;
    }
    let shared = Queries::new(bench, sequences, 1)?.sharing(true);
    let same = Queries::new(bench, sequences, 1)?.sharing(false);
    let once = Amount::moved(2 * sizes.keys_part() / sequences, 0);
    let turn = Cell::new(0);
    let next = || turn.replace(turn.get() + 1);
    let lanes = vec![
        bench.lane(Role::Ours, "kvtide, pages", amount, || queries.attend(pages.layer(next()))),
        bench.lane(Role::Ours, "kvtide, pages, tables from the host", amount, || queries.attend(told.layer(next()))),
        bench.lane(Role::Ours, "kvtide, q8 pages", low_amount, || queries.attend(low.layer(next()))),
        bench.lane(Role::Ours, "kvtide, pages that all share, read once", once, || shared.attend(pages.layer(next()))),
        bench
            .lane(Role::Ours, "kvtide, pages that all share, read for each", once, || same.attend(pages.layer(next()))),
        bench.lane(Role::Ours, "kvtide, contiguous", amount, || queries.attend(contiguous)),
        bench.copy(rows, scratch, amount),
    ];
    let heads = format!("{query_heads}/{kv_heads} heads of {dim}");
    bench.measured(format!("attention of one query, {sequences} sequences of {count} keys, {heads}, bf16"), lanes)
}
