//! A decode step of one sequence, launched by the host and replayed as a graph: new tokens into pages, attention of every layer,
//! lengths moved on.
//!
//! The host's time is the point: a graph asks for the whole step at once.

use kvtide_bench::{Amount, Role};
use kvtide_cuda::{DeviceLengths, RowFormat, Rows, Stream, Tables, advance, insert};

use super::keys::{Keys, Pool};
use super::queries::Queries;
use super::step::words;
use super::{Bench, Measurement};
use crate::Result;
use crate::numbers::fill;
use crate::pages::Page;
use crate::sizes::Sizes;

const TIMES: usize = 16;

pub fn step(bench: &Bench<'_>) -> Result<Measurement> {
    let Bench { place, sizes, .. } = *bench;
    let Sizes { kv_heads, layers, pool_layers, block, keys: count, .. } = *sizes;
    let page = Page::new(sizes, "bf16");
    let keys = Keys::new(bench)?;
    let pages = Pool::new(bench, &keys, RowFormat::Bf16)?;
    let queries = Queries::new(bench, 1, 1)?;
    // The new token is the last one that attention sees.
    let (before, seen) = (words(bench, [count - 1].into_iter())?, words(bench, [count].into_iter())?);
    let part = pool_layers * kv_heads * sizes.row();
    let new = bench.memory(2 * part)?;
    fill(place, new, 13, 1.0)?;
    let token = kv_heads * sizes.row();
    let rows = [0, part].map(|offset| Rows { memory: new, offset, layer: token, head: sizes.row(), token });
    let into = page.insert(sizes, pages.memory, rows, pool_layers);
    let tables = Tables { lengths: before, blocks: keys.tables, sequences: 1, row_blocks: count / block };
    let lengths = DeviceLengths { memory: seen, keys_max: count };
    let launched = |stream: &Stream| -> Result<()> {
        insert(stream, &into, &tables)?;
        (0..layers).try_for_each(|layer| queries.attend_on(stream, pages.layer(layer), Some(lengths)))?;
        // By none, so that the next step finds the same.
        Ok(advance(stream, tables.lengths, 1, 0)?)
    };
    let graph = place.stream.capture(launched)?;
    launched(&place.stream)?;
    let expected = queries.outputs()?;
    queries.spoil()?;
    graph.replay()?;
    if queries.outputs()? != expected {
        return Err("a replay answers something else than its launches".into());
    }
    let amount = Amount::moved(layers * 2 * kv_heads * count * sizes.row(), 0);
    let [source, scratch] = [bench.memory(amount.bytes as usize / 2)?, bench.memory(amount.bytes as usize / 2)?];
    fill(place, source, 14, 1.0)?;
    let lanes = vec![
        bench.lane(Role::Ours, "kvtide, launched", amount, || launched(&place.stream)),
        bench.lane(Role::Ours, "kvtide, replayed", amount, || Ok(graph.replay()?)),
        bench.copy(source, scratch, amount),
    ];
    let lanes = lanes.into_iter().map(|lane| lane.times(TIMES)).collect();
    bench.measured(format!("a decode step of {layers} layers, one sequence of {count} keys, bf16 pages"), lanes)
}
