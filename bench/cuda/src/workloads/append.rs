//! Measures appending tokens: kvtide's cache, candle's `slice_set` into preallocated memory, and `cat`.
//!
//! All of them count the bytes that must be moved: those of the new tokens, read and written.

use std::cell::{Cell, RefCell};

use candle_core::{DType, Tensor};
use kvtide_bench::{Amount, Role};
use kvtide_tensor::{KvCache, KvCacheOptions};

use super::{Bench, Measurement};
use crate::Result;
use crate::sizes::Sizes;

pub fn appended(bench: &Bench<'_>, batch: usize, tokens: usize) -> Result<Measurement> {
    let Bench { place, sizes, .. } = *bench;
    let Sizes { kv_heads, dim, keys, times, .. } = *sizes;
    let device = &place.device;
    let random = |tokens: usize| {
        let shape = (batch, kv_heads, tokens, dim);
        Tensor::randn(0f32, 1f32, shape, device)?.to_dtype(DType::BF16)
    };
    // Half of the capacity is in use.
    let (held, times) = (keys / 2, if tokens == 1 { times } else { 4 });
    let [k, v] = [random(tokens)?, random(tokens)?];
    let [old_k, old_v] = [random(held)?, random(held)?];
    let room = || Tensor::zeros((batch, kv_heads, keys, dim), DType::BF16, device);
    let [all_k, all_v] = [room()?, room()?];
    let cache = RefCell::new(KvCache::new(KvCacheOptions {
        batch_size: batch as u32,
        num_kv_heads: kv_heads as u32,
        head_dim: dim as u32,
        initial_capacity: keys as u32,
        max_seq_len: keys as u32,
        dtype: kvtide_tensor::DType::BF16,
        device: device.clone(),
        ..Default::default()
    })?);
    cache.borrow_mut().update(&old_k, &old_v)?;
    let ours = || {
        let mut cache = cache.borrow_mut();
        if cache.seq_len() as usize + tokens > keys {
            cache.truncate(held as u64)?;
        }
        cache.update_shown(&k, &v)?;
        Ok(())
    };
    let at = Cell::new(held);
    let slice_set = || {
        let place = if at.get() + tokens > keys { held } else { at.get() };
        at.set(place + tokens);
        all_k.slice_set(&k, 2, place)?;
        Ok(all_v.slice_set(&v, 2, place)?)
    };
    let cat = || {
        Tensor::cat(&[&old_k, &k], 2)?;
        Tensor::cat(&[&old_v, &v], 2)?;
        Ok(())
    };
    ours()?;
    slice_set()?;
    check(&cache.borrow(), &all_k, [&old_k, &k])?;
    let bytes = 2 * batch * kv_heads * tokens * sizes.row();
    let amount = Amount::moved(bytes, bytes);
    let lanes = vec![
        bench.lane(Role::Ours, "kvtide", amount, ours),
        bench.lane(Role::Peer, "candle, slice_set", amount, slice_set),
        bench.lane(Role::Peer, "candle, cat", amount, cat),
        bench.copy(bench.memory(bytes)?, bench.memory(bytes)?, amount),
    ];
    let lanes = lanes.into_iter().map(|lane| lane.times(times)).collect();
    let title = format!("append of {tokens} tokens to {held}, {batch} sequences, {kv_heads} heads of {dim}, bf16");
    bench.measured(title, lanes)
}

/// Compares the cache's keys with the result of `cat`, and the new keys with those of `slice_set`.
fn check(cache: &KvCache, all: &Tensor, [old, new]: [&Tensor; 2]) -> Result<()> {
    let floats = |tensor: &Tensor| tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>();
    let shown = cache.get_kv()?.k.tensor()?;
    if floats(&shown)? != floats(&Tensor::cat(&[old, new], 2)?)? {
        return Err("the cache's keys differ from those of `cat`".into());
    }
    let (held, tokens) = (old.dim(2)?, new.dim(2)?);
    if floats(&all.narrow(2, held, tokens)?.contiguous()?)? != floats(new)? {
        return Err("the keys written by `slice_set` differ".into());
    }
    Ok(())
}
