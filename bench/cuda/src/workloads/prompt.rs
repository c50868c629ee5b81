//! Measures moving a prompt of all layers: into head-major tensors, into pages, and out of pages.

use kvtide_bench::Amount;
use kvtide_cuda::{BoxCopy, Direction, Rows, Span, copy_boxes, copy_strips};

use super::{Bench, Measurement, gigabytes};
use crate::Result;
use crate::check;
use crate::numbers::{fill, samples};
use crate::pages::{Page, scattered, strips};
use crate::sizes::Sizes;

/// The layout of new rows as a model produces them, K and then V: layer, token, head.
fn rows<'a>(sizes: &Sizes, memory: Span<'a>) -> [Rows<'a>; 2] {
    let (row, part) = (sizes.row(), sizes.prompt_part());
    let (token, layer) = (sizes.kv_heads * row, part / sizes.layers);
    [0, part].map(|offset| Rows { memory, offset, layer, head: row, token })
}

fn row_at(sizes: &Sizes, [part, layer, token, head]: [usize; 4]) -> usize {
    (((part * sizes.layers + layer) * sizes.prompt + token) * sizes.kv_heads + head) * sizes.row()
}

fn sampled(sizes: &Sizes) -> impl Iterator<Item = [usize; 4]> {
    let Sizes { layers, prompt, kv_heads, .. } = *sizes;
    samples(2 * layers * prompt * kv_heads).map(move |at| {
        let (head, rest) = (at % kv_heads, at / kv_heads);
        [rest / prompt / layers, rest / prompt % layers, rest % prompt, head]
    })
}

/// Returns one box for K and one for V of each layer.
pub fn append(bench: &Bench<'_>) -> Result<Measurement> {
    let Bench { place, sizes, .. } = *bench;
    let Sizes { kv_heads, layers, prompt, .. } = *sizes;
    let (row, bytes) = (sizes.row(), 2 * sizes.prompt_part());
    // The buffer is larger than the prompt.
    let slots = prompt + prompt / 8;
    let (source, target) = (bench.memory(bytes)?, bench.memory(2 * layers * kv_heads * slots * row)?);
    fill(place, source, 1, 1.0)?;
    let target_strides = [slots * row, row, 1];
    let source_strides = [row, kv_heads * row, 1];
    let dims = [kv_heads, prompt, row];
    let boxes: Vec<BoxCopy<'_>> = (0..2 * layers)
        .map(|of| BoxCopy {
            target: target.from(of * kv_heads * slots * row),
            target_strides: &target_strides,
            source: source.from(of * kv_heads * prompt * row),
            source_strides: &source_strides,
            dims: &dims,
            element: 1,
        })
        .collect();
    copy_boxes(&place.stream, &boxes)?;
    let pairs = sampled(sizes).map(|at @ [part, layer, token, head]| {
        let to = (((part * layers + layer) * kv_heads + head) * slots + token) * row;
        (row_at(sizes, at), to)
    });
    check::rows(place, [source, target], row, pairs)?;
    let amount = Amount::moved(bytes, bytes);
    let title = format!("append of {prompt} tokens, {layers} layers, bf16, {}", gigabytes(bytes));
    bench.beside_copy(title, amount, [source, target], || Ok(copy_boxes(&place.stream, &boxes)?))
}

pub fn carried(bench: &Bench<'_>, direction: Direction) -> Result<Measurement> {
    let Bench { place, sizes, .. } = *bench;
    let Sizes { layers, prompt, block, .. } = *sizes;
    let page = Page::new(sizes, "bf16");
    let (bytes, block_bytes) = (2 * sizes.prompt_part(), layers * page.bytes);
    let blocks = scattered(prompt.div_ceil(block));
    let (outside, inside) = (bench.memory(bytes)?, bench.memory(blocks.len() * block_bytes)?);
    let is_scatter = direction == Direction::Scatter;
    let (source, target) = if is_scatter { (outside, inside) } else { (inside, outside) };
    fill(place, source, 2, 1.0)?;
    let call = page.moves(sizes, inside, rows(sizes, outside), layers);
    let strips = strips(&blocks, block, block_bytes, prompt, 0);
    copy_strips(&place.stream, direction, &call, &strips)?;
    let pairs = sampled(sizes).map(|at @ [part, layer, token, head]| {
        let (start, section) = (blocks[token / block] * block_bytes + layer * page.bytes, page.parts[part]);
        let in_page = start + section.codes + head * section.head + token % block * section.row;
        let out = row_at(sizes, at);
        if is_scatter { (out, in_page) } else { (in_page, out) }
    });
    check::rows(place, [source, target], sizes.row(), pairs)?;
    let amount = Amount::moved(bytes, bytes);
    let way = if is_scatter { "into pages" } else { "out of pages" };
    let title = format!("{prompt} tokens {way} of {block}, {layers} layers, bf16, {}", gigabytes(bytes));
    bench.beside_copy(title, amount, [source, target], || Ok(copy_strips(&place.stream, direction, &call, &strips)?))
}
