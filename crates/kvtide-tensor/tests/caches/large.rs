//! Buffers so large that their moves use non-temporal stores and all threads, with each set of kernels.

use kvtide_tensor::runtime::{Kernels, with_kernels};
use kvtide_tensor::{DType, HostTensor, KvCache, KvCacheOptions, RotatingCacheOptions, RotatingKvCache};

const HEADS: usize = 3;
const DIM: usize = 500;

/// A token's bytes in one part and head, unlike those of any other near it.
fn row(part: usize, head: usize, token: usize) -> impl Iterator<Item = u8> {
    let salt = part * 7 + head * 31 + token * 131;
    (0..DIM * 2).map(move |at| (salt + at + at * salt / 61) as u8)
}

/// These tokens of K and V, `[1, heads, n, dim]`.
fn rows(part: usize, tokens: std::ops::Range<usize>) -> Vec<u8> {
    let token = |head: usize| tokens.clone().flat_map(move |token| row(part, head, token));
    (0..HEADS).flat_map(token).collect()
}

fn host(bytes: &[u8]) -> HostTensor<'_> {
    HostTensor::new("k", bytes, DType::F16, &[1, HEADS, bytes.len() / HEADS / DIM / 2, DIM]).unwrap()
}

#[test]
fn a_large_window_is_compacted_and_read() {
    let window = 6000;
    let (k, v) = (rows(0, 0..window), rows(1, 0..window));
    for kernels in Kernels::supported() {
        let options = RotatingCacheOptions { max_seq_len: window as u32, slack: Some(2), ..Default::default() };
        let seen = with_kernels(kernels, || {
            let mut cache = RotatingKvCache::new(options).unwrap();
            cache.append(host(&k), host(&v)).unwrap();
            for token in window..window + 5 {
                cache.append(host(&rows(0, token..token + 1)), host(&rows(1, token..token + 1))).unwrap();
            }
            assert_eq!(cache.stats().compactions, 1);
            let seen = cache.current_data().unwrap().unwrap();
            [seen.k.to_bytes().unwrap(), seen.v.to_bytes().unwrap()]
        })
        .unwrap();
        for (part, bytes) in seen.iter().enumerate() {
            assert!(*bytes == rows(part, 5..window + 5), "part {part}, {kernels}");
        }
    }
}

#[test]
fn a_large_buffer_grows() {
    let tokens = 12_000;
    let (k, v) = (rows(0, 0..tokens), rows(1, 0..tokens));
    for kernels in Kernels::supported() {
        let options = KvCacheOptions {
            num_kv_heads: HEADS as u32,
            head_dim: DIM as u32,
            dtype: DType::F16,
            initial_capacity: tokens as u32,
            ..Default::default()
        };
        let seen = with_kernels(kernels, || {
            let mut cache = KvCache::new(options).unwrap();
            cache.update(host(&k), host(&v)).unwrap();
            let seen = cache.update(host(&rows(0, 7..8)), host(&rows(1, 7..8))).unwrap();
            assert_eq!(cache.stats().growths, 1);
            [seen.k.copied(&kvtide_tensor::runtime::Budget::process()).unwrap(), seen.v]
        })
        .unwrap();
        for (part, view) in seen.iter().enumerate() {
            assert!(view.narrow(2, 0, tokens).unwrap().to_bytes().unwrap() == rows(part, 0..tokens), "{kernels}");
            assert!(view.narrow(2, tokens, 1).unwrap().to_bytes().unwrap() == rows(part, 7..8), "{kernels}");
        }
    }
}
