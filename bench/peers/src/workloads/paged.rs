//! Measures single tokens of one sequence in pages: writing, reading a copy, and looking up a token's slot.
//!
//! The order is that of decoding: token by token, and within a token layer by layer. Each round writes a new sequence
//! into existing blocks.

use std::hint::black_box;

use kvtide_bench::{Lane, Result, Role, measure};
use kvtide_core::paged::{KeyOrValue, PageLayout, PagedPlanner};
use kvtide_tensor::{DType, HostTensor, PagedKvCache, PagedKvCacheOptions};
use oxibonsai_model::paged_kv_cache::PagedKvCache as OxibonsaiCache;

use super::Outcome;
use crate::large::zeros;
use crate::tokens::{HEAD_DIM, HEADS, TOKEN, Tokens};

const BLOCK: usize = 16;

fn each(tokens: usize, layers: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..tokens).flat_map(move |position| (0..layers).map(move |layer| (position, layer)))
}

fn lane<'a>(
    role: Role,
    name: &str,
    [tokens, layers]: [usize; 2],
    mut work: impl FnMut(usize, usize) -> Result<()> + 'a,
) -> Lane<'a> {
    Lane::timed(role, name, (tokens * layers) as u32, move |stopwatch| {
        stopwatch.time(|| each(tokens, layers).try_for_each(|(position, layer)| work(position, layer)))
    })
}

fn our_cache(tokens: usize, layers: usize) -> Result<PagedKvCache> {
    Ok(PagedKvCache::new(PagedKvCacheOptions {
        capacity: tokens.div_ceil(BLOCK) as u32,
        block_size: BLOCK as u32,
        num_layers: layers as u32,
        num_kv_heads: HEADS as u32,
        head_dim: HEAD_DIM as u32,
        ..Default::default()
    })?)
}

fn their_cache(tokens: usize, layers: usize) -> OxibonsaiCache {
    OxibonsaiCache::new_with_block_size(tokens.div_ceil(BLOCK) * layers, BLOCK, layers, HEADS, HEAD_DIM)
}

fn our_write(cache: &mut PagedKvCache, tokens: usize, layers: usize, step: &Tokens<f32>) -> Result<u64> {
    let host = |name, data| HostTensor::new(name, bytemuck::cast_slice(data), DType::F32, &[HEADS, HEAD_DIM]);
    let sequence = cache.create_sequence()?;
    for (position, layer) in each(tokens, layers) {
        cache.write_kv(sequence, layer as u32, position as u32, host("key", &step.k)?, host("value", &step.v)?)?;
    }
    Ok(sequence)
}

fn their_write(cache: &mut OxibonsaiCache, tokens: usize, layers: usize, step: &Tokens<f32>) -> Result<u64> {
    let sequence = cache.create_sequence();
    for (position, layer) in each(tokens, layers) {
        cache.write_kv(sequence, layer, position, &step.k, &step.v)?;
    }
    Ok(sequence)
}

/// The cache's slab in plain memory: the same rows at the same places, for a single sequence.
struct BareSlab {
    layout: PageLayout,
    memory: Vec<f32>,
}

impl BareSlab {
    fn new(cache: &PagedKvCache, tokens: usize) -> Self {
        let layout = cache.layouts().next().expect("a group");
        let shape = layout.shape();
        let elements = 2 * tokens.next_multiple_of(BLOCK) * shape.num_layers as usize * TOKEN;
        BareSlab { layout, memory: zeros(elements) }
    }

    /// Returns the index of the first element of a token's row of a head.
    fn row(&self, position: usize, layer: usize, part: KeyOrValue, head: usize) -> usize {
        let (block, slot) = ((position / BLOCK) as u32, (position % BLOCK) as u32);
        self.layout.row_offset(block, layer as u32, part, head as u32, slot) / size_of::<f32>()
    }

    fn write(&mut self, position: usize, layer: usize, step: &Tokens<f32>) {
        for (part, token) in KeyOrValue::BOTH.into_iter().zip([&step.k, &step.v]) {
            for (head, row) in token.chunks_exact(HEAD_DIM).enumerate() {
                let at = self.row(position, layer, part, head);
                self.memory[at..at + HEAD_DIM].copy_from_slice(row);
            }
        }
    }

    fn read(&self, position: usize, layer: usize, out: &mut Tokens<f32>) {
        for (part, token) in KeyOrValue::BOTH.into_iter().zip([&mut out.k, &mut out.v]) {
            for (head, row) in token.chunks_exact_mut(HEAD_DIM).enumerate() {
                let at = self.row(position, layer, part, head);
                row.copy_from_slice(&self.memory[at..at + HEAD_DIM]);
            }
        }
    }
}

fn writes(size: [usize; 2], step: &Tokens<f32>) -> Result<Vec<Lane<'_>>> {
    let [tokens, layers] = size;
    let (mut ours, mut theirs) = (our_cache(tokens, layers)?, their_cache(tokens, layers));
    let mut bare = BareSlab::new(&ours, tokens);
    let operations = (tokens * layers) as u32;
    Ok(vec![
        Lane::timed(Role::Ours, "kvtide, write", operations, move |stopwatch| {
            let sequence = stopwatch.time(|| our_write(&mut ours, tokens, layers, step))?;
            Ok(ours.drop_sequence(sequence)?)
        }),
        Lane::timed(Role::Peer, "oxibonsai-model, write", operations, move |stopwatch| {
            let sequence = stopwatch.time(|| their_write(&mut theirs, tokens, layers, step))?;
            Ok(theirs.drop_sequence(sequence)?)
        }),
        lane(Role::Limit, "bare slab, write", size, move |position, layer| {
            bare.write(position, layer, black_box(step));
            black_box(&mut bare);
            Ok(())
        }),
    ])
}

fn reads(size: [usize; 2], step: &Tokens<f32>) -> Result<Vec<Lane<'_>>> {
    let [tokens, layers] = size;
    let (mut ours, mut theirs) = (our_cache(tokens, layers)?, their_cache(tokens, layers));
    let ours_id = our_write(&mut ours, tokens, layers, step)?;
    let theirs_id = their_write(&mut theirs, tokens, layers, step)?;
    let (mut key, mut value) = (vec![0u8; TOKEN * 4], vec![0u8; TOKEN * 4]);
    let (mut their_key, mut their_value) = (vec![0f32; TOKEN], vec![0f32; TOKEN]);
    let mut bare = BareSlab::new(&ours, tokens);
    each(tokens, layers).for_each(|(position, layer)| bare.write(position, layer, step));
    let mut out = Tokens::<f32>::new(1, 0)?;
    Ok(vec![
        lane(Role::Ours, "kvtide, read", size, move |position, layer| {
            ours.read_kv_into(ours_id, layer as u32, position as u32, &mut key, &mut value)?;
            black_box((&mut key, &mut value));
            Ok(())
        }),
        lane(Role::Peer, "oxibonsai-model, read and copy", size, move |position, layer| {
            let (k, v) = theirs.read_kv(theirs_id, layer, position)?;
            their_key.copy_from_slice(k);
            their_value.copy_from_slice(v);
            black_box((&mut their_key, &mut their_value));
            Ok(())
        }),
        lane(Role::Limit, "bare slab, read", size, move |position, layer| {
            bare.read(position, layer, black_box(&mut out));
            Ok(())
        }),
    ])
}

fn look_ups(size: [usize; 2], step: &Tokens<f32>) -> Result<Vec<Lane<'_>>> {
    let [tokens, layers] = size;
    let mut planner = PagedPlanner::new(tokens.div_ceil(BLOCK) as u32, BLOCK as u32, layers as u32)?;
    let sequence = planner.create_sequence()?;
    for (position, layer) in each(tokens, layers) {
        let plan = planner.plan_tokens(sequence, layer as u32, position as u32, 1)?;
        planner.reserve(&plan)?;
        planner.commit(&plan, None)?;
    }
    let mut theirs = their_cache(tokens, layers);
    let theirs_id = their_write(&mut theirs, tokens, layers, step)?;
    Ok(vec![
        lane(Role::Ours, "kvtide, look-up", size, move |position, layer| {
            black_box(planner.locate(sequence, layer as u32, position as u32)?);
            Ok(())
        }),
        lane(Role::Peer, "oxibonsai-model, look-up", size, move |position, layer| {
            black_box(theirs.read_kv(theirs_id, layer, position)?);
            Ok(())
        }),
    ])
}

pub fn run(tokens: usize, layers: usize, rounds: usize) -> Result<Outcome> {
    let (step, size) = (Tokens::<f32>::new(1, 1)?, [tokens, layers]);
    let mut measured = Vec::new();
    for lanes in [writes(size, &step)?, reads(size, &step)?, look_ups(size, &step)?] {
        measured.extend(measure(lanes, rounds)?);
    }
    let title = format!("paged, single tokens in blocks of {BLOCK}, {tokens} tokens of {layers} layers, f32");
    Ok(Outcome::new(title, "token and layer", measured))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_slab_reads_what_the_cache_reads() {
        let mut cache = our_cache(20, 2).unwrap();
        let mut bare = BareSlab::new(&cache, 20);
        let sequence = cache.create_sequence().unwrap();
        for (position, layer) in each(20, 2) {
            let step = Tokens::new(1, 2 * position + layer).unwrap();
            let host =
                |data| HostTensor::new("key", bytemuck::cast_slice(data), DType::F32, &[HEADS, HEAD_DIM]).unwrap();
            cache.write_kv(sequence, layer as u32, position as u32, host(&step.k), host(&step.v)).unwrap();
            bare.write(position, layer, &step);
        }
        let mut out = Tokens::new(1, 0).unwrap();
        for (position, layer) in each(20, 2) {
            bare.read(position, layer, &mut out);
            let seen = cache.read_kv(sequence, layer as u32, position as u32).unwrap();
            assert_eq!((seen.key_f32().unwrap(), seen.value_f32().unwrap()), (out.k.clone(), out.v.clone()));
        }
    }
}
