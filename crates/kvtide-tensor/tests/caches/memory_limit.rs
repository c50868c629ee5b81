//! A call that fails for lack of memory leaves a cache as it was; nothing aborts.

use candle_core::{DType as CandleDType, Tensor};
use kvtide_core::Code;
use kvtide_tensor::{
    DType, HostTensor, KvCache, KvCacheOptions, PagedKvCache, PagedKvCacheOptions, RollbackCache, RollbackCacheOptions,
    RotatingCache, RotatingCacheOptions,
};

use crate::numbers::{shown, tokens};
use crate::outcome::code;

/// Bytes of one token in K and V.
const TOKEN: u64 = 8;

fn kv(initial_capacity: u32, limit: u64) -> KvCache {
    let options =
        KvCacheOptions { initial_capacity, max_seq_len: 64, memory_limit_bytes: Some(limit), ..Default::default() };
    KvCache::new(options).unwrap()
}

fn update(cache: &mut KvCache, numbers: std::ops::Range<u32>) -> Result<(), Code> {
    code(cache.update(&tokens(numbers.clone()), &tokens(numbers)))
}

fn everything(cache: &KvCache) -> String {
    cache.check_invariants().unwrap();
    let (kv, raw) = (cache.get_kv().unwrap(), cache.raw().unwrap());
    format!("{:?} {:?} {:?} {:?}", shown(&kv.k), shown(&kv.v), shown(&raw.k), cache.stats())
}

fn window(limit_tokens: u64, slack: u32) -> RotatingCache {
    let options = RotatingCacheOptions {
        max_seq_len: 4,
        slack: Some(slack),
        memory_limit_bytes: Some(limit_tokens * 4),
        ..Default::default()
    };
    RotatingCache::new(options).unwrap()
}

fn everything_of(cache: &RotatingCache) -> String {
    cache.check_invariants().unwrap();
    let views = [cache.current_data().unwrap(), cache.last_append_result(), cache.all_data().unwrap()];
    let views = views.map(|view| shown(&view.unwrap()));
    format!("{views:?} {} {} {:?}", cache.current_seq_len(), cache.capacity_seq_len(), cache.stats())
}

#[test]
fn growth_that_does_not_fit_is_refused_with_the_numbers() {
    let mut cache = kv(4, 11 * TOKEN);
    update(&mut cache, 0..3).unwrap();
    let before = everything(&cache);
    let error = cache.update(&tokens(3..6), &tokens(3..6)).unwrap_err();
    let details: Vec<_> = error.details().into_iter().map(|detail| (detail.name, detail.value)).collect();
    let expected = [("requestedBytes", 8 * TOKEN), ("usedBytes", 4 * TOKEN), ("limitBytes", 11 * TOKEN)];
    assert_eq!(
        (error.code(), details),
        (Code::OutOfMemory, expected.map(|(name, value)| (name, value.into())).to_vec())
    );
    assert_eq!(everything(&cache), before);
    assert_eq!(update(&mut cache, 3..4), Ok(()), "what needs no memory still works");
}

#[test]
fn rows_that_cannot_be_saved_are_not_overwritten() {
    let mut cache = kv(8, 9 * TOKEN);
    update(&mut cache, 0..8).unwrap();
    let snapshot = cache.snapshot().unwrap();
    cache.truncate(3).unwrap();
    let before = everything(&cache);
    assert_eq!(update(&mut cache, 20..22), Err(Code::OutOfMemory));
    assert_eq!(everything(&cache), before);
    cache.restore(&snapshot).unwrap();
    assert_eq!(shown(&cache.get_kv().unwrap().k), (0..8).collect::<Vec<_>>());
    cache.truncate(3).unwrap();
    drop(snapshot);
    assert_eq!(update(&mut cache, 20..22), Ok(()));
}

#[test]
fn a_compaction_on_write_that_does_not_fit_is_refused() {
    let mut cache = window(10, 2);
    for token in 0..6 {
        cache.append(&tokens([token])).unwrap();
    }
    let snapshot = cache.snapshot().unwrap();
    let before = everything_of(&cache);
    assert_eq!(code(cache.append(&tokens([6]))), Err(Code::OutOfMemory));
    assert_eq!(everything_of(&cache), before);
    drop(snapshot);
    assert_eq!(shown(&cache.append(&tokens([6])).unwrap()), [3, 4, 5, 6]);
}

#[test]
fn a_result_of_its_own_that_does_not_fit_is_refused() {
    let mut cache = window(12, 1);
    cache.append(&tokens(0..4)).unwrap();
    let before = everything_of(&cache);
    assert_eq!(code(cache.append(&tokens(4..8))), Err(Code::OutOfMemory));
    assert_eq!(everything_of(&cache), before);
    assert_eq!(shown(&cache.append(&tokens(4..7)).unwrap()), [0, 1, 2, 3, 4, 5, 6]);
}

#[test]
fn a_first_buffer_that_does_not_fit_leaves_the_shape_open() {
    let mut cache = window(3, 0);
    assert_eq!(code(cache.append(&tokens([1]))), Err(Code::OutOfMemory));
    assert_eq!((cache.current_seq_len(), cache.dtype(), cache.stats().used_bytes), (0, None, 0));
    let options = RollbackCacheOptions { memory_limit_bytes: Some(2 * TOKEN), ..Default::default() };
    let mut cache = RollbackCache::new(options).unwrap();
    assert_eq!(code(cache.append(&tokens(0..3), &tokens(0..3), None)), Err(Code::OutOfMemory));
    assert!(cache.current().unwrap().is_none());
    cache.append(&tokens(0..2), &tokens(0..2), None).unwrap();
    assert_eq!(code(cache.append(&tokens([2]), &tokens([2]), Some(&[1]))), Err(Code::OutOfMemory));
    assert_eq!((cache.total_len(), cache.tree().len()), (2, 2));
    cache.check_invariants().unwrap();
}

#[test]
fn a_restore_that_does_not_fit_is_refused() {
    let mut big = kv(16, 64 * TOKEN);
    update(&mut big, 0..10).unwrap();
    let snapshot = big.snapshot().unwrap();
    let mut cache = kv(4, 12 * TOKEN);
    update(&mut cache, 50..53).unwrap();
    let before = everything(&cache);
    assert_eq!(code(cache.restore(&snapshot)), Err(Code::OutOfMemory));
    assert_eq!(everything(&cache), before);
}

#[test]
fn capacities_beyond_memory_are_refused_and_never_abort() {
    let most = i32::MAX as u32;
    let huge = |batch_size, num_kv_heads, head_dim| KvCacheOptions {
        batch_size,
        num_kv_heads,
        head_dim,
        initial_capacity: most,
        ..Default::default()
    };
    for options in [huge(most, most, most), huge(1, most, most), huge(most, 1, 1 << 20), huge(1, 4096, 4096)] {
        assert_eq!(code(KvCache::new(options)), Err(Code::OutOfMemory));
    }
    let options = RotatingCacheOptions {
        max_seq_len: most - 64,
        capacity_seq_len: Some(most),
        slack: Some(64),
        ..Default::default()
    };
    let mut cache = RotatingCache::new(options).unwrap();
    let wide = Tensor::zeros((64, 64, 1, 64), CandleDType::F32, &candle_core::Device::Cpu).unwrap();
    assert_eq!(code(cache.append(&wide)), Err(Code::OutOfMemory));
    assert_eq!((cache.current_seq_len(), cache.dtype()), (0, None));
    for (capacity, block_size, num_layers) in [(most, most, most), (most, 1 << 20, 1), (1 << 20, 1 << 20, 1 << 20)] {
        let options = PagedKvCacheOptions { capacity, block_size, num_layers, head_dim: 64, ..Default::default() };
        assert_eq!(code(PagedKvCache::new(options)), Err(Code::OutOfMemory));
    }
}

#[test]
fn shapes_beyond_memory_are_refused_and_never_abort() {
    let one = Tensor::zeros((1, 1, 1, 1), CandleDType::U8, &candle_core::Device::Cpu).unwrap();
    let mut cache = RotatingCache::new(RotatingCacheOptions { max_seq_len: 4, ..Default::default() }).unwrap();
    let mut rollback = RollbackCache::new(Default::default()).unwrap();
    let options = PagedKvCacheOptions { capacity: 1, dtype: DType::U8, ..Default::default() };
    let mut paged = PagedKvCache::new(options).unwrap();
    let sequence = paged.create_sequence().unwrap();
    for (heads, expected) in [(1 << 8, Code::OutOfMemory), (1 << 20, Code::ShapeMismatch)] {
        let wide = one.broadcast_as((1 << 20, heads, 2, 1 << 20)).unwrap();
        assert_eq!(code(cache.append(&wide)), Err(expected));
        assert_eq!(code(rollback.append(&wide, &wide, None)), Err(expected));
        assert_eq!(code(paged.write_kv(sequence, 0, 0, &wide, &wide)), Err(expected));
    }
    let empty = |shape: &[usize]| code(HostTensor::new("src", &[], DType::F32, shape));
    assert_eq!(empty(&[0, 1 << 40, 1, 1 << 40]), Err(Code::ShapeMismatch));
    let wide = HostTensor::new("src", &[], DType::F32, &[1 << 20, 1 << 20, 0, 1 << 19]).unwrap();
    assert_eq!(code(cache.append(wide)), Ok(()));
    let wide = HostTensor::new("src", &[], DType::F32, &[0, 1 << 29, 1, 1 << 30]).unwrap();
    assert_eq!(code(cache.append(wide)), Err(Code::OutOfMemory));
    assert_eq!((cache.current_seq_len(), cache.dtype(), rollback.total_len()), (0, None, 0));
}
