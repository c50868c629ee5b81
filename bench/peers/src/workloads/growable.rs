//! Measures single-token appends to an empty cache, growing and preallocated.
//!
//! Making the cache is timed, because that allocates memory; dropping it is not. Lanes that copy all their tokens
//! at each append stop early, because their cost per append increases with the tokens.

use std::hint::black_box;

use boostr::inference::KvCache as BoostrCache;
use boostr::{CpuClient, CpuDevice, CpuRuntime};
use candle_nn::kv_cache::{ConcatKvCache, KvCache as CandleCache};
use kvtide_bench::{Lane, Result, Role};
use kvtide_tensor::{KvCache, KvCacheOptions};

use super::Outcome;
use crate::bare::BareGrowing;
use crate::tokens::{HEAD_DIM, HEADS, Tokens};

/// A lane that makes a cache and appends `tokens` times, timed, then drops it.
fn lane<'a, C: 'a, T>(
    role: Role,
    name: impl Into<String>,
    tokens: u32,
    make: impl Fn() -> Result<C> + 'a,
    append: impl Fn(&mut C) -> Result<T> + 'a,
) -> Lane<'a> {
    Lane::making(role, name, tokens, move || {
        let mut cache = make()?;
        for _ in 0..tokens {
            black_box(append(&mut cache)?);
        }
        Ok(cache)
    })
}

fn ours<'a>(name: &str, initial: u32, tokens: u32, step: &'a Tokens<f32>) -> Lane<'a> {
    let make = move || {
        Ok(KvCache::new(KvCacheOptions {
            num_kv_heads: HEADS as u32,
            head_dim: HEAD_DIM as u32,
            initial_capacity: initial,
            max_seq_len: tokens,
            ..Default::default()
        })?)
    };
    lane(Role::Ours, name, tokens, make, |cache| Ok(cache.update(&step.k_tensor, &step.v_tensor)?))
}

/// It grows by its initial capacity.
fn candle<'a>(name: &str, initial: u32, tokens: u32, step: &'a Tokens<f32>) -> Lane<'a> {
    let make = move || Ok(CandleCache::new(2, initial as usize));
    lane(Role::Peer, name, tokens, make, |cache| Ok(cache.append(&step.k_tensor, &step.v_tensor)?))
}

fn concatenating(tokens: u32, step: &Tokens<f32>) -> Lane<'_> {
    let name = format!("candle-nn ConcatKvCache, first {tokens}");
    let make = || Ok(ConcatKvCache::new(2));
    lane(Role::Peer, name, tokens, make, |cache| Ok(cache.append(&step.k_tensor, &step.v_tensor)?))
}

/// Uses its fused update, because the other one copies the whole capacity at each step.
fn boostr<'a>(name: &str, initial: u32, tokens: u32, step: &'a Tokens<f32>) -> Lane<'a> {
    let device = CpuDevice::new();
    let client = CpuClient::new(device.clone());
    let tensor = |data: &[f32]| boostr::Tensor::<CpuRuntime>::from_slice(data, &[1, HEADS, 1, HEAD_DIM], &device);
    let (k, v) = (tensor(&step.k), tensor(&step.v));
    let make = move || {
        let (initial, max) = (initial as usize, tokens as usize);
        Ok(BoostrCache::<CpuRuntime>::new(1, HEADS, initial, max, HEAD_DIM, boostr::DType::F32, &device)?)
    };
    lane(Role::Peer, name, tokens, make, move |cache| {
        cache.update_fused(&k, &v, &client)?;
        Ok(cache.get_kv()?)
    })
}

fn bare<'a>(name: &str, initial: u32, tokens: u32, step: &'a Tokens<f32>) -> Lane<'a> {
    let make = move || Ok(BareGrowing::<f32>::new(initial as usize));
    lane(Role::Limit, name, tokens, make, |bare| {
        bare.append(step);
        Ok(())
    })
}

pub fn run(tokens: u32, rounds: usize) -> Result<Outcome> {
    let step = Tokens::<f32>::new(1, 1)?;
    let lanes = vec![
        ours("kvtide, growing", 256, tokens, &step),
        ours("kvtide, preallocated", tokens, tokens, &step),
        candle("candle-nn KvCache, growing by 512", 512, tokens, &step),
        candle("candle-nn KvCache, preallocated", tokens, tokens, &step),
        concatenating(tokens.min(512), &step),
        boostr("boostr, growing", 256, tokens, &step),
        boostr("boostr, preallocated", tokens, tokens, &step),
        bare("bare rows, growing", 256, tokens, &step),
        bare("bare rows, preallocated", tokens, tokens, &step),
    ];
    Outcome::of(format!("growable, {tokens} single-token appends from empty, f32"), "append", lanes, rounds)
}
