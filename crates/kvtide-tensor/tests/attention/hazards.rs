//! Special cases of attention: rows that attend to no key, NaN and infinity, stale memory, dependence on the number of
//! threads.

use kvtide_core::Code;
use kvtide_tensor::attention::{AttendOptions, Attended, KvRows, attend};
use kvtide_tensor::runtime::{Kernels, with_kernels};
use kvtide_tensor::{DType, HostTensor, KvCache, KvCacheOptions, Result};

use crate::numbers::{Numbers, to_bytes};

const DIM: usize = 32;

fn attended(q: &[f32], k: &[f32], v: &[f32], heads: usize, options: &AttendOptions<'_>) -> Result<Attended> {
    attended_with([q, k, v], DType::F32, heads, DIM, options)
}

fn attended_with(
    rows: [&[f32]; 3],
    dtype: DType,
    heads: usize,
    dim: usize,
    options: &AttendOptions<'_>,
) -> Result<Attended> {
    let [q_tokens, kv_tokens] = [rows[0].len() / (heads * dim), rows[1].len() / dim];
    let [q, k, v] = rows.map(|floats| to_bytes(dtype, floats));
    let host =
        |name, bytes, sizes: [usize; 2]| HostTensor::new(name, bytes, dtype, &[1, sizes[0], sizes[1], dim]).unwrap();
    let rows = KvRows::Batched { k: host("k", &k, [1, kv_tokens]).into(), v: host("v", &v, [1, kv_tokens]).into() };
    attend(host("q", &q, [heads, q_tokens]), rows, options)
}

#[test]
fn a_row_that_sees_nothing_is_zeros_and_its_logarithm_minus_infinity() {
    let mut numbers = Numbers::new(1);
    let (q, k, v) = (numbers.take(4 * DIM), numbers.take(3 * DIM), numbers.take(3 * DIM));
    for form in Kernels::supported() {
        // Four queries over three keys: the first stands before every key.
        let result = with_kernels(form, || attended(&q, &k, &v, 1, &AttendOptions::default())).unwrap().unwrap();
        let out = result.out.to_f32().unwrap();
        assert!(out[..DIM].iter().all(|value| *value == 0.0), "{form}");
        assert_eq!(result.lse[0], f32::NEG_INFINITY, "{form}");
        assert!(result.lse[1..].iter().all(|lse| lse.is_finite()) && out[DIM..].iter().any(|value| *value != 0.0));
    }
}

#[test]
fn what_a_row_does_not_see_may_be_no_number() {
    let mut numbers = Numbers::new(2);
    let (q, mut k, mut v) = (numbers.take(3 * DIM), numbers.take(140 * DIM), numbers.take(140 * DIM));
    let clean = attended(&q, &k, &v, 1, &AttendOptions::default()).unwrap().out.to_f32().unwrap();
    for (rows, hidden) in [(&mut k, f32::NAN), (&mut v, f32::INFINITY)] {
        rows[139 * DIM..].fill(hidden);
    }
    for form in Kernels::supported() {
        let result = with_kernels(form, || attended(&q, &k, &v, 1, &AttendOptions::default())).unwrap().unwrap();
        let out = result.out.to_f32().unwrap();
        let off = out.iter().zip(&clean).take(2 * DIM).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(off < 1e-6, "{form}: the first two queries do not see the last key, off by {off}");
        assert!(out[2 * DIM..].iter().all(|value| !value.is_finite()), "{form}: the last one does");
    }
}

#[test]
fn what_a_mask_hides_may_be_no_number() {
    let mut numbers = Numbers::new(5);
    let (q, mut k, v) = (numbers.take(DIM), numbers.take(9 * DIM), numbers.take(9 * DIM));
    let mut mask = [0f32; 9];
    mask[4] = f32::NEG_INFINITY;
    let mask = to_bytes(DType::F32, &mask);
    let options =
        AttendOptions { mask: Some(HostTensor::new("mask", &mask, DType::F32, &[9]).unwrap()), ..Default::default() };
    let clean = attended(&q, &k, &v, 1, &options).unwrap().out.to_f32().unwrap();
    k[4 * DIM..5 * DIM].fill(f32::NAN);
    for form in Kernels::supported() {
        let result = with_kernels(form, || attended(&q, &k, &v, 1, &options)).unwrap().unwrap();
        let off = result.out.to_f32().unwrap().iter().zip(&clean).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(off < 1e-6, "{form} is off by {off}");
    }
}

#[test]
fn large_scores_are_no_infinities() {
    let (q, k) = (vec![300.0; DIM], [vec![300.0; DIM], vec![-300.0; DIM], vec![299.0; DIM]].concat());
    let v = [vec![1.0; DIM], vec![2.0; DIM], vec![3.0; DIM]].concat();
    for form in Kernels::supported() {
        let result = with_kernels(form, || attended(&q, &k, &v, 1, &AttendOptions::default())).unwrap().unwrap();
        assert_eq!(result.out.to_f32().unwrap(), vec![1.0; DIM], "{form}");
    }
}

#[test]
fn the_same_call_gives_the_same_bits_on_any_number_of_threads() {
    let mut numbers = Numbers::new(3);
    let (q, k, v) = (numbers.take(8 * 2 * DIM), numbers.take(5000 * DIM), numbers.take(5000 * DIM));
    let bits = |threads| {
        let options = AttendOptions { threads: Some(threads), ..Default::default() };
        let result = attended(&q, &k, &v, 8, &options).unwrap();
        (result.out.to_bytes().unwrap(), result.lse)
    };
    let alone = bits(1);
    for threads in [2, 3, 16] {
        assert_eq!(bits(threads), alone, "{threads} threads");
    }
}

#[test]
fn what_an_earlier_call_left_behind_changes_nothing() {
    let numbers = |seed, dim: usize| Numbers::new(seed).take(60 * dim);
    let bits = |dtype, dim: usize, queries: usize| {
        let [q, k, v] = [6, 7, 8].map(|seed| numbers(seed, dim));
        let rows = [&q[..queries * dim], &k, &v];
        let result = attended_with(rows, dtype, 1, dim, &AttendOptions::default()).unwrap();
        (result.out.to_bytes().unwrap(), result.lse)
    };
    for form in Kernels::supported() {
        for dtype in [DType::F32, DType::F16] {
            for (dim, queries) in [1, 5, 12, 20, 40, 72].into_iter().flat_map(|dim| [1, 5, 12, 60].map(|n| (dim, n))) {
                let under = || with_kernels(form, || bits(dtype, dim, queries)).unwrap();
                let fresh = std::thread::scope(|scope| scope.spawn(under).join().unwrap());
                for number in [f32::NAN, f32::INFINITY, f32::MAX] {
                    let left = vec![number; 60 * 128];
                    for rows in [12, 60] {
                        let rows = [&left[..rows * 128], &left, &left];
                        let _ = with_kernels(form, || attended_with(rows, dtype, 1, 128, &AttendOptions::default()));
                    }
                    assert_eq!(under(), fresh, "{form}, {dtype:?}, {dim} elements, {queries} queries, behind {number}");
                }
            }
        }
    }
}

#[test]
fn a_stale_view_is_refused_and_so_is_one_whose_cache_is_gone() {
    let mut cache = KvCache::new(KvCacheOptions { head_dim: DIM as u32, ..Default::default() }).unwrap();
    let bytes = to_bytes(DType::F32, &vec![1.0; 4 * DIM]);
    let host = || HostTensor::new("tokens", &bytes, DType::F32, &[1, 1, 4, DIM]).unwrap();
    let shown = cache.update(host(), host()).unwrap();
    let options = AttendOptions::default();
    cache.truncate(1).unwrap();
    assert!(attend(host(), &shown, &options).is_ok());
    cache.update(host(), host()).unwrap();
    assert_eq!(attend(host(), &shown, &options).unwrap_err().code(), Code::StaleView);
    let shown = cache.get_kv().unwrap();
    cache.close();
    assert_eq!(attend(host(), &shown, &options).unwrap_err().code(), Code::Disposed);
}

#[test]
fn work_ends_when_it_is_told_to() {
    let stop = std::sync::atomic::AtomicBool::new(true);
    let mut numbers = Numbers::new(4);
    let (q, k, v) = (numbers.take(DIM), numbers.take(500 * DIM), numbers.take(500 * DIM));
    for form in Kernels::supported() {
        let options = AttendOptions { stop: Some(&stop), ..Default::default() };
        let refused = with_kernels(form, || attended(&q, &k, &v, 1, &options)).unwrap().unwrap_err();
        assert_eq!(refused.code(), Code::Aborted, "{form}");
    }
}
