//! Full caches of several layers, one query, and the same numbers as candle tensors.

use candle_core::{CpuStorage, Device, Storage, Tensor};
use half::slice::HalfFloatSliceExt;
use kvtide_bench::Result;
use kvtide_tensor::{DType, Kv, KvCache, KvCacheOptions};

use crate::tokens::{HEAD_DIM, HEADS};

pub const QUERY_HEADS: usize = 32;
/// The number of query heads that share a head of K and V.
pub const GROUP: usize = QUERY_HEADS / HEADS;

/// Returns the bytes of the last-level cache, or 32 MiB if the machine doesn't report them.
fn last_cache_bytes() -> usize {
    let size = |index| std::fs::read_to_string(format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size")).ok();
    (0..8).filter_map(size).next_back().and_then(|size| bytes_of(size.trim())).unwrap_or(32 << 20)
}

/// Parses `1024K` or `2M`.
fn bytes_of(size: &str) -> Option<usize> {
    let (number, unit) = size.split_at(size.len().checked_sub(1)?);
    Some(number.parse::<usize>().ok()? << if unit == "M" { 20 } else { 10 })
}

/// Returns how many layers of this size exceed the last-level cache: more than eight times its size in total.
pub fn layers_beyond_caches(layer_bytes: usize) -> usize {
    8 * last_cache_bytes() / layer_bytes + 1
}

pub fn layer_bytes(dtype: DType, keys: usize) -> usize {
    2 * keys * HEADS * HEAD_DIM * dtype.bytes()
}

pub fn noise(shape: &[usize], dtype: DType, seed: u32) -> Result<Tensor> {
    let mut state = seed | 1;
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.
    };
    let floats: Vec<f32> = (0..shape.iter().product()).map(next).collect();
    Ok(Tensor::from_vec(floats, shape, &Device::Cpu)?.to_dtype(dtype.candle())?)
}

/// Full caches, one for each layer, and queries for all of them.
pub struct Layers {
    pub dtype: DType,
    pub keys: usize,
    /// `[1, QUERY_HEADS, queries, HEAD_DIM]`
    pub q: Tensor,
    /// A view of each cache; it keeps the cache's memory alive.
    pub kv: Vec<Kv>,
}

impl Layers {
    pub fn new(dtype: DType, count: usize, queries: usize, keys: usize) -> Result<Self> {
        let shape = [1, HEADS, keys, HEAD_DIM];
        let (k, v) = (noise(&shape, dtype, 3)?, noise(&shape, dtype, 5)?);
        let full = |_| -> Result<Kv> {
            let mut cache = KvCache::new(KvCacheOptions {
                num_kv_heads: HEADS as u32,
                head_dim: HEAD_DIM as u32,
                initial_capacity: keys as u32,
                max_seq_len: keys as u32,
                dtype,
                ..Default::default()
            })?;
            Ok(cache.update(&k, &v)?)
        };
        let q = noise(&[1, QUERY_HEADS, queries, HEAD_DIM], dtype, 7)?;
        Ok(Layers { dtype, keys, q, kv: (0..count).map(full).collect::<Result<_>>()? })
    }

    pub fn tensors(&self) -> Result<Vec<[Tensor; 2]>> {
        self.kv.iter().map(|kv| Ok([kv.k.tensor()?, kv.v.tensor()?])).collect()
    }

    /// Returns the multiply-adds of one layer if every query sees every key: one for the score and one for the sum.
    pub fn multiply_adds(&self) -> u64 {
        2 * self.q.elem_count() as u64 * self.keys as u64
    }
}

pub fn with_bytes<T>(tensors: &[Tensor], work: impl FnOnce(&[&[u8]]) -> T) -> Result<T> {
    let held: Vec<_> = tensors.iter().map(Tensor::storage_and_layout).collect();
    let bytes = held.iter().map(|(storage, layout)| -> Result<&[u8]> {
        let (start, end) = layout.contiguous_offsets().ok_or("a tensor with gaps")?;
        match &**storage {
            Storage::Cpu(CpuStorage::F32(floats)) => Ok(bytemuck::cast_slice(&floats[start..end])),
            Storage::Cpu(CpuStorage::F16(halves)) => Ok(bytemuck::cast_slice(halves[start..end].reinterpret_cast())),
            Storage::Cpu(CpuStorage::BF16(halves)) => Ok(bytemuck::cast_slice(halves[start..end].reinterpret_cast())),
            _ => Err("the tensor has another type".into()),
        }
    });
    let bytes = bytes.collect::<Result<Vec<_>>>()?;
    Ok(work(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_of_a_cache_are_found_where_they_lie() {
        let layers = Layers::new(DType::F16, 2, 1, 16).unwrap();
        for ([k, v], kv) in layers.tensors().unwrap().into_iter().zip(&layers.kv) {
            with_bytes(&[k, v], |bytes| {
                assert_eq!(bytes[0].as_ptr(), kv.k.as_ptr().unwrap());
                assert_eq!(bytes[1], kv.v.to_bytes().unwrap());
            })
            .unwrap();
        }
        assert_eq!(layers.multiply_adds(), 2 * 32 * 16 * 128);
    }

    #[test]
    fn noise_lies_between_minus_one_and_one() {
        let numbers = noise(&[1000], DType::F32, 1).unwrap().to_vec1::<f32>().unwrap();
        assert!(numbers.iter().all(|number| (-1. ..=1.).contains(number)));
        assert!(numbers.iter().sum::<f32>().abs() < 100.);
    }

    #[test]
    fn sizes_of_caches_are_read() {
        assert_eq!(["1024K", "2M", "large", ""].map(bytes_of), [Some(1 << 20), Some(2 << 20), None, None]);
        assert!(last_cache_bytes() >= 1 << 18);
    }

    #[test]
    fn layers_exceed_the_caches() {
        assert!(layers_beyond_caches(1 << 20) << 20 > 8 * last_cache_bytes());
    }
}
