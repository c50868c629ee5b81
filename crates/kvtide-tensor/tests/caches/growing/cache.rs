//! `KvCache`: misuse, then values.

use candle_core::{DType as CandleDType, Tensor};
use kvtide_core::Code;
use kvtide_tensor::{DType, KvCache, KvCacheOptions};

use crate::numbers::{shown, tokens, zeros};
use crate::outcome::code;
use crate::tokens::place;
use crate::windows::pair;

fn options(heads: u32, initial_capacity: u32, max_seq_len: u32, head_dim: u32) -> KvCacheOptions {
    KvCacheOptions { num_kv_heads: heads, initial_capacity, max_seq_len, head_dim, ..Default::default() }
}

fn made(options: KvCacheOptions) -> KvCache {
    KvCache::new(options).unwrap()
}

/// Tokens 0..n in K, 100.. in V, of one head and element.
fn with(tokens_so_far: u32) -> KvCache {
    let mut cache = made(options(1, 4, 32, 1));
    update(&mut cache, 0..tokens_so_far);
    cache
}

fn update(cache: &mut KvCache, numbers: std::ops::Range<u32>) {
    cache.update(&tokens(numbers.clone()), &tokens(numbers.map(|number| number + 100))).unwrap();
}

fn everything(cache: &KvCache) -> String {
    let raw = pair(cache.raw().unwrap()).each_ref().map(shown);
    let kv = cache.get_kv().map(|kv| pair(kv).each_ref().map(shown)).map_err(|error| error.code());
    format!("{} {} {raw:?} {kv:?} {:?}", cache.seq_len(), cache.capacity(), cache.stats())
}

#[test]
fn sizes_of_zero_and_unbounded_lengths_are_refused() {
    let base = || options(1, 4, 8, 4);
    for wrong in [
        KvCacheOptions { batch_size: 0, ..base() },
        KvCacheOptions { num_kv_heads: 0, ..base() },
        KvCacheOptions { head_dim: 0, ..base() },
        KvCacheOptions { max_seq_len: 0, ..base() },
        KvCacheOptions { max_seq_len: 1 << 31, ..base() },
        KvCacheOptions { batch_size: u32::MAX, ..base() },
    ] {
        assert_eq!(code(KvCache::new(wrong)), Err(Code::InvalidArgument));
    }
}

#[test]
fn tensors_that_do_not_fit_are_refused_and_change_nothing() {
    let mut cache = with(3);
    let before = everything(&cache);
    let right = tokens([1, 2]);
    for (wrong, expected) in [
        (zeros(&[1, 1, 3, 1], CandleDType::F32), Code::ShapeMismatch),
        (zeros(&[2, 1, 2, 1], CandleDType::F32), Code::ShapeMismatch),
        (zeros(&[1, 2, 2, 1], CandleDType::F32), Code::ShapeMismatch),
        (zeros(&[1, 1, 2, 2], CandleDType::F32), Code::ShapeMismatch),
        (zeros(&[1, 1, 2], CandleDType::F32), Code::ShapeMismatch),
        (zeros(&[1], CandleDType::F32), Code::ShapeMismatch),
        (zeros(&[1, 1, 2, 1], CandleDType::F16), Code::DtypeMismatch),
        (zeros(&[1, 1, 2, 1], CandleDType::I64), Code::DtypeMismatch),
    ] {
        assert_eq!(code(cache.update(&wrong, &right)), Err(expected));
        assert_eq!(code(cache.update(&right, &wrong)), Err(expected));
        assert_eq!(everything(&cache), before);
    }
}

#[test]
fn more_than_fits_is_refused_with_the_numbers() {
    let mut cache = made(options(2, 4, 8, 4));
    let ten = zeros(&[1, 2, 10, 4], CandleDType::F32);
    let error = cache.update(&ten, &ten).unwrap_err();
    assert_eq!(error.code(), Code::CacheOverflow);
    assert_eq!(error.to_string(), "cannot append 10 tokens: 0 of 8 used");
    let details: Vec<_> = error.details().into_iter().map(|detail| (detail.name, detail.value)).collect();
    assert_eq!(details, [("seqLen", 0.into()), ("newTokens", 10.into()), ("maxSeqLen", 8.into())]);
    assert_eq!((cache.seq_len(), cache.capacity()), (0, 4));
}

#[test]
fn an_empty_cache_shows_nothing() {
    let mut cache = made(options(4, 64, 2048, 32));
    assert_eq!((cache.seq_len(), cache.capacity(), cache.is_empty()), (0, 64, true));
    assert_eq!((cache.max_seq_len(), cache.dtype()), (2048, DType::F32));
    assert_eq!(code(cache.get_kv()), Err(Code::CacheEmpty));
    assert_eq!(code(cache.truncate(1)), Err(Code::CannotRollBack));
    assert_eq!(code(cache.increment_seq_len(65)), Err(Code::CacheOverflow));
    assert_eq!(cache.seq_len(), 0);
}

#[test]
fn three_tokens_are_shown_in_both() {
    let mut cache = made(options(2, 64, 2048, 4));
    let k = Tensor::arange(0f32, 24., &candle_core::Device::Cpu).unwrap().reshape((1, 2, 3, 4)).unwrap();
    let seen = cache.update(&k, &(&k + 100.).unwrap()).unwrap();
    assert_eq!((cache.seq_len(), seen.k.shape(), seen.v.shape()), (3, &[1, 2, 3, 4][..], &[1, 2, 3, 4][..]));
    assert_eq!(shown(&seen.k), (0..24).collect::<Vec<_>>());
    assert_eq!(shown(&cache.get_kv().unwrap().v), (100..124).collect::<Vec<_>>());
    cache.reset().unwrap();
    assert_eq!((cache.seq_len(), cache.is_empty(), cache.capacity()), (0, true, 64));
}

#[test]
fn the_buffer_doubles_until_it_fits_and_never_over_the_most() {
    let mut cache = made(options(2, 4, 2048, 4));
    let five = zeros(&[1, 2, 5, 4], CandleDType::F32);
    cache.update(&five, &five).unwrap();
    assert_eq!((cache.seq_len(), cache.capacity()), (5, 8));
    let mut cache = made(options(1, 3, 7, 1));
    update(&mut cache, 0..5);
    assert_eq!((cache.capacity(), cache.stats().growths, cache.stats().copied_bytes), (6, 1, 0));
    update(&mut cache, 5..7);
    assert_eq!(cache.capacity(), 7);
    assert_eq!(made(options(1, 100, 7, 1)).capacity(), 7);
}

#[test]
fn an_initial_capacity_of_zero_grows() {
    let mut cache = made(options(1, 0, 32, 1));
    assert_eq!(cache.capacity(), 0);
    cache.update(&tokens([]), &tokens([])).unwrap();
    assert_eq!((cache.seq_len(), cache.capacity()), (0, 0));
    let raw = cache.raw().unwrap();
    assert_eq!((raw.k.shape(), raw.k.to_bytes().unwrap().len()), (&[1, 1, 0, 1][..], 0));
    update(&mut cache, 0..5);
    assert_eq!((cache.seq_len(), cache.capacity()), (5, 8));
    assert_eq!(shown(&cache.get_kv().unwrap().k), [0, 1, 2, 3, 4]);
}

#[test]
fn a_truncated_tail_is_gone() {
    let mut cache = with(5);
    let before = everything(&cache);
    assert_eq!(code(cache.truncate(6)), Err(Code::CannotRollBack));
    assert_eq!(code(cache.truncate(u64::MAX)), Err(Code::CannotRollBack));
    assert_eq!(everything(&cache), before);
    cache.truncate(2).unwrap();
    assert_eq!(shown(&cache.get_kv().unwrap().k), [0, 1]);
    update(&mut cache, 7..8);
    assert_eq!(shown(&cache.get_kv().unwrap().v), [100, 101, 107]);
}

#[test]
fn a_kernel_writes_rows_itself_and_counts_them() {
    let mut cache = with(3);
    let (k, v) = cache.raw_tensors().unwrap();
    k.slice_set(&tokens([3]), 2, 3).unwrap();
    v.slice_set(&tokens([103]), 2, 3).unwrap();
    assert_eq!(cache.seq_len(), 3);
    cache.increment_seq_len(1).unwrap();
    assert_eq!(shown(&cache.get_kv().unwrap().v), [100, 101, 102, 103]);
    assert_eq!(code(cache.increment_seq_len(1)), Err(Code::CacheOverflow));
    assert_eq!(code(cache.increment_seq_len(u32::MAX)), Err(Code::CacheOverflow));
    assert_eq!(cache.seq_len(), 4);
}

#[test]
fn a_stable_address_never_moves() {
    let stable = || KvCacheOptions { stable_addresses: true, ..options(1, 1, 16, 1) };
    let mut cache = made(stable());
    let address = |cache: &KvCache| pair(cache.raw().unwrap()).map(|view| place(&view));
    let before = address(&cache);
    update(&mut cache, 0..9);
    let snapshot = cache.snapshot().unwrap();
    cache.truncate(3).unwrap();
    update(&mut cache, 20..30);
    cache.restore(&snapshot).unwrap();
    assert_eq!((address(&cache), cache.capacity()), (before, 16));
    let mut other = made(stable());
    update(&mut other, 40..52);
    let (before, own) = (address(&other), other.snapshot().unwrap());
    other.restore(&snapshot).unwrap();
    assert_eq!(address(&other), before, "also for a snapshot of another cache");
    assert_eq!(shown(&other.get_kv().unwrap().k), (0..9).collect::<Vec<_>>());
    other.restore(&own).unwrap();
    assert_eq!((address(&other), shown(&other.get_kv().unwrap().k)), (before, (40..52).collect()));
}

#[test]
fn a_snapshot_that_does_not_fit_is_refused() {
    let snapshot = with(9).snapshot().unwrap();
    assert_eq!(snapshot.seq_len(), 9);
    for wrong in [
        options(1, 4, 8, 1),
        options(2, 4, 32, 1),
        options(1, 4, 32, 2),
        KvCacheOptions { dtype: DType::F16, ..options(1, 4, 32, 1) },
    ] {
        let mut cache = made(wrong);
        assert_eq!(code(cache.restore(&snapshot)), Err(Code::SnapshotInvalid));
        assert_eq!(cache.seq_len(), 0);
    }
}
