//! Measures quantising pages of bf16 to low-bit pages, and dequantising them.

use kvtide_bench::Amount;
use kvtide_cuda::{Format, Quantised, QuantisedPage, QuantisedPages, Span, seal, unseal};

use super::{Bench, Measurement, gigabytes};
use crate::Result;
use crate::check;
use crate::numbers::{fill, floats, samples};
use crate::pages::{Page, scattered};
use crate::sizes::Sizes;

/// A call over pages whose rows are in pages of another form.
pub fn call<'a>(
    sizes: &Sizes,
    memory: Span<'a>,
    page: &Page,
    rows: [(Span<'a>, usize, usize); 2],
) -> QuantisedPages<'a> {
    let parts = [0, 1].map(|part| {
        let (rows, head, token) = rows[part];
        Quantised {
            rows,
            head,
            token,
            element: Format::Bf16,
            format: page.formats[part],
            dim: sizes.dim,
            is_rotated: false,
            codes: page.sections()[part],
            scales: [page.parts[part].scales, page.parts[part].scale_head],
        }
    });
    QuantisedPages { memory, page_bytes: page.bytes, slots: sizes.block, heads: sizes.kv_heads, parts }
}

pub fn measured(bench: &Bench<'_>, name: &'static str, is_seal: bool) -> Result<Measurement> {
    let Bench { place, sizes, .. } = *bench;
    let Sizes { kv_heads, block, carried, .. } = *sizes;
    let (wide, page) = (Page::new(sizes, "bf16"), Page::new(sizes, name));
    // The largest error of a number from -1 to 1: half a step, and that of bf16.
    let most = [("f8e4m3", 0.04), ("q8", 0.01), ("q4", 0.08)].into_iter().find(|(form, _)| *form == name);
    let (_, most) = most.ok_or("a form of pages")?;
    let count = carried / wide.bytes;
    let (source, back) = (bench.memory(count * wide.bytes)?, bench.memory(count * wide.bytes)?);
    let low = bench.memory(count * page.bytes)?;
    fill(place, source, 6, 1.0)?;
    fill(place, low, 7, 1.0)?;
    fill(place, back, 8, 1.0)?;
    let into = call(sizes, low, &page, wide.rows(source));
    let out = call(sizes, low, &page, wide.rows(back));
    let pages: Vec<QuantisedPage> = scattered(count)
        .into_iter()
        .enumerate()
        .map(|(from, to)| QuantisedPage {
            page: (to * page.bytes) as u64,
            rows: wide.parts.map(|part| (from * wide.bytes + part.codes) as u64),
            slot: 0,
            tokens: block as u32,
        })
        .collect();
    seal(&place.stream, &into, &pages)?;
    unseal(&place.stream, &out, &pages)?;
    for at in samples(count * wide.bytes / sizes.row()).map(|at| at * sizes.row()) {
        let [found, expected] = [back, source].map(|span| check::bytes(place, span, at, sizes.row()));
        check::near(name, &floats(&found?), &floats(&expected?), most)?;
    }
    let low_bit: usize = page.parts.iter().map(|part| kv_heads * (part.head + part.scale_head)).sum();
    let amount = Amount::moved(count * wide.bytes, count * low_bit);
    let way = if is_seal { "bf16 to" } else { "to bf16 from" };
    let title = format!("{count} pages {way} {}, {} of bf16", name, gigabytes(count * wide.bytes));
    bench.beside_copy(title, amount, [source, back], || match is_seal {
        true => Ok(seal(&place.stream, &into, &pages)?),
        false => Ok(unseal(&place.stream, &out, &pages)?),
    })
}
