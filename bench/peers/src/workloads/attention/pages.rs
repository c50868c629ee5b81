//! Measures one query over pages in place, against contiguous caches, and over low-bit pages.
//!
//! Every lane uses enough layers of its own to exceed the processor's caches. Tokens were written in bulk, into blocks
//! of the default size.

use std::rc::Rc;

use kvtide_bench::{Lane, Result, Role};
use kvtide_core::paged::PageFormat;
use kvtide_tensor::attention::{AttendOptions, attend};
use kvtide_tensor::{DType, PagedKvCache, PagedKvCacheOptions};

use super::super::Outcome;
use super::ggml;
use super::layers::{Layers, QUERY_HEADS, layer_bytes, layers_beyond_caches, noise};
use super::ours;
use crate::large::filled;
use crate::sum::sum;
use crate::tokens::{HEAD_DIM, HEADS};

const BLOCK: usize = 16;

/// The contents of a lane's pages: the element type of queries and tokens, and the form of the pages.
struct Kind {
    name: &'static str,
    dtype: DType,
    format: Option<PageFormat>,
}

const KINDS: [Kind; 5] = [
    Kind { name: "pages, f32", dtype: DType::F32, format: None },
    Kind { name: "pages, f16", dtype: DType::F16, format: None },
    Kind { name: "pages, f8e4m3", dtype: DType::F16, format: Some(PageFormat::F8E4M3) },
    Kind { name: "pages, q8", dtype: DType::F16, format: Some(PageFormat::Q8) },
    Kind { name: "pages, q4", dtype: DType::F16, format: Some(PageFormat::Q4) },
];

fn cache(kind: &Kind, layers: usize, keys: usize) -> Result<PagedKvCache> {
    Ok(PagedKvCache::new(PagedKvCacheOptions {
        capacity: keys.div_ceil(BLOCK) as u32,
        block_size: BLOCK as u32,
        num_layers: layers as u32,
        num_kv_heads: HEADS as u32,
        head_dim: HEAD_DIM as u32,
        dtype: kind.dtype,
        key_format: kind.format,
        value_format: kind.format,
        ..Default::default()
    })?)
}

fn token_bytes(kind: &Kind) -> Result<f64> {
    Ok(cache(kind, 1, BLOCK)?.bytes_per_token())
}

fn lane(kind: &Kind, keys: usize, count: Option<usize>) -> Result<Lane<'static>> {
    let count = match count {
        Some(count) => count,
        None => layers_beyond_caches((token_bytes(kind)? * keys as f64) as usize),
    };
    let mut cache = cache(kind, count, keys)?;
    let sequence = cache.create_sequence()?;
    let rows = |seed| noise(&[HEADS, keys, HEAD_DIM], kind.dtype, seed);
    let (k, v) = (rows(3)?, rows(5)?);
    for layer in 0..count as u32 {
        cache.write_tokens(sequence, layer, 0, &k, &v)?;
    }
    let q = noise(&[1, QUERY_HEADS, HEAD_DIM], kind.dtype, 7)?;
    Ok(Lane::timed(Role::Ours, kind.name, count as u32, move |stopwatch| {
        stopwatch.time(|| {
            let options = AttendOptions { threads: Some(1), ..Default::default() };
            for layer in 0..count as u32 {
                let pages = cache.pages(layer, &[sequence])?;
                std::hint::black_box(attend(&q, &pages, &options)?);
            }
            Ok(())
        })
    }))
}

/// A plain sum over as much memory as the pages of all layers: from front to back, or layer by layer in the order of
/// pages.
fn sums(kind: &Kind, keys: usize, count: Option<usize>) -> [Lane<'static>; 2] {
    let page = 2 * HEADS * BLOCK * HEAD_DIM * kind.dtype.bytes();
    let blocks = keys.div_ceil(BLOCK);
    let count = count.unwrap_or_else(|| layers_beyond_caches(blocks * page));
    let memory: Rc<Vec<u8>> = Rc::new(filled(blocks * count * page, 0));
    let dtype = kind.dtype;
    let lane = |name: &str, paged: bool| {
        let memory = memory.clone();
        Lane::timed(Role::Limit, name, count as u32, move |stopwatch| {
            stopwatch.time(|| {
                if !paged {
                    return std::hint::black_box(sum(dtype, &memory));
                }
                let mut total = 0.;
                for (layer, block) in (0..count).flat_map(|layer| (0..blocks).map(move |block| (layer, block))) {
                    total += sum(dtype, &memory[(block * count + layer) * page..][..page]);
                }
                std::hint::black_box(total)
            });
            Ok(())
        })
    };
    [lane(&format!("sum, {dtype}"), false), lane(&format!("sum in the order of pages, {dtype}"), true)]
}

pub fn run(keys: usize, count: Option<usize>, rounds: usize) -> Result<Outcome> {
    let pieces = |dtype| {
        let count = count.unwrap_or_else(|| layers_beyond_caches(layer_bytes(dtype, keys)));
        Layers::new(dtype, count, 1, keys)
    };
    let (floats, halves) = (pieces(DType::F32)?, pieces(DType::F16)?);
    let mut lanes = vec![ours("one piece, f32", &floats, 1), ours("one piece, f16", &halves, 1)];
    for kind in &KINDS {
        lanes.push(lane(kind, keys, count)?);
    }
    let low_bits = count.unwrap_or_else(|| layers_beyond_caches(layer_bytes(DType::F16, keys) / 2));
    lanes.extend(ggml::low_bit_lanes(&halves, low_bits)?);
    for kind in &KINDS[..2] {
        lanes.extend(sums(kind, keys, count));
    }
    let title = format!("attention over pages of {BLOCK}, 1 query of 32 heads over {keys} keys of 8, layers in turn");
    let mut outcome = Outcome::of(title, "layer", lanes, rounds)?;
    for kind in &KINDS {
        outcome.facts.insert(format!("bytes of {}", kind.name), token_bytes(kind)?);
    }
    Ok(outcome)
}
