//! `RotatingCache`: misuse, then values.

use candle_core::DType;
use kvtide_core::Code;
use kvtide_tensor::{RotatingCache, RotatingCacheOptions};

use crate::numbers::{rows, shown, tokens, zeros};
use crate::outcome::code;

/// Window 4, capacity 4.
fn cache() -> RotatingCache {
    made(RotatingCacheOptions { max_seq_len: 4, capacity_seq_len: Some(4), ..Default::default() })
}

fn made(options: RotatingCacheOptions) -> RotatingCache {
    RotatingCache::new(options).unwrap()
}

/// Tokens 0..n, one batch row.
fn with(tokens_so_far: u32) -> RotatingCache {
    let mut cache = cache();
    cache.append(&tokens(0..tokens_so_far)).unwrap();
    cache
}

fn current(cache: &RotatingCache) -> Option<Vec<u32>> {
    cache.current_data().unwrap().map(|view| shown(&view))
}

/// Everything there is to read.
fn everything(cache: &RotatingCache) -> String {
    let last = cache.last_append_result().map(|view| shown(&view));
    let all = cache.all_data().unwrap().map(|view| shown(&view));
    let lengths = (cache.current_seq_len(), cache.retained_len(), cache.capacity_seq_len(), cache.dtype());
    format!("{lengths:?} {:?} {last:?} {all:?} {:?}", current(cache), cache.stats())
}

#[test]
fn options_out_of_range_are_refused() {
    let refused = |options| code(RotatingCache::new(options));
    let options = || RotatingCacheOptions::default();
    assert_eq!(refused(RotatingCacheOptions { max_seq_len: 0, ..options() }), Err(Code::InvalidArgument));
    assert_eq!(refused(RotatingCacheOptions { dim: 8, ..options() }), Err(Code::InvalidArgument));
    let huge = RotatingCacheOptions { max_seq_len: i32::MAX as u32, sinks: 1, ..options() };
    assert_eq!(refused(huge), Err(Code::InvalidArgument));
    let huge = RotatingCacheOptions { max_seq_len: u32::MAX, slack: Some(u32::MAX), ..options() };
    assert_eq!(refused(huge), Err(Code::InvalidArgument));
}

#[test]
fn a_tensor_that_does_not_fit_is_refused_and_changes_nothing() {
    let mut cache = with(6);
    let before = everything(&cache);
    let cases = [
        (zeros(&[1, 1], DType::F32), Code::ShapeMismatch),
        (zeros(&[1, 1, 2], DType::F32), Code::ShapeMismatch),
        (zeros(&[1, 1, 2, 1, 1], DType::F32), Code::ShapeMismatch),
        (zeros(&[2, 1, 2, 1], DType::F32), Code::ShapeMismatch),
        (zeros(&[1, 1, 2, 2], DType::F32), Code::ShapeMismatch),
        (zeros(&[1; 9], DType::F32), Code::ShapeMismatch),
        (zeros(&[1, 1, 2, 1], DType::F16), Code::DtypeMismatch),
        (zeros(&[1, 1, 2, 1], DType::F64), Code::DtypeMismatch),
    ];
    for (tensor, expected) in cases {
        assert_eq!(code(cache.append(&tensor)), Err(expected), "{:?}", tensor.shape());
        assert_eq!(everything(&cache), before);
    }
}

#[test]
fn an_append_over_the_window_shows_all_and_keeps_the_last() {
    let mut cache = cache();
    assert_eq!(shown(&cache.append(&tokens(0..3)).unwrap()), [0, 1, 2]);
    assert_eq!(cache.current_seq_len(), 3);
    assert_eq!(shown(&cache.append(&tokens(3..6)).unwrap()), [0, 1, 2, 3, 4, 5]);
    assert_eq!((cache.current_seq_len(), cache.retained_len()), (6, 4));
    assert_eq!(current(&cache).unwrap(), [2, 3, 4, 5]);
    assert_eq!(shown(&cache.last_append_result().unwrap()), [0, 1, 2, 3, 4, 5]);
}

#[test]
fn a_window_that_has_moved_on_cannot_be_cut() {
    let mut cache = with(5);
    let before = everything(&cache);
    assert_eq!(code(cache.try_set_len(4)), Err(Code::CannotRollBack));
    assert_eq!(code(cache.set_len(4)), Err(Code::CannotRollBack));
    assert_eq!(code(cache.set_len(0)), Err(Code::CannotRollBack));
    assert_eq!(everything(&cache), before);
    assert_eq!(code(cache.set_len(5)), Ok(()));
}

#[test]
fn a_length_over_the_present_one_is_refused() {
    let mut cache = with(3);
    let before = everything(&cache);
    for len in [4, 100, u64::from(u32::MAX) + 4, u64::MAX] {
        assert_eq!(code(cache.try_set_len(len)), Err(Code::CannotRollBack));
        assert_eq!(code(cache.set_len(len)), Err(Code::CannotRollBack));
    }
    assert_eq!(everything(&cache), before);
    cache.set_len(2).unwrap();
    assert_eq!(current(&cache).unwrap(), [0, 1]);
    assert!(cache.last_append_result().is_none());
    assert_eq!(shown(&cache.append(&tokens([9])).unwrap()), [0, 1, 9]);
}

#[test]
fn accepted_tokens_go_on_from_a_snapshot() {
    let mut cache = with(5);
    let snapshot = cache.snapshot().unwrap();
    cache.append(&tokens(5..8)).unwrap();
    let accepted = cache.accepted_append_from_batched_append(&snapshot, 7, 0, 1).unwrap().unwrap();
    assert_eq!(shown(&accepted), [5, 6]);
    let restored = RotatingCache::restore_from_snapshot(&snapshot, Some((&accepted).into()), 7).unwrap();
    assert_eq!(restored.current_seq_len(), 7);
    assert_eq!(current(&restored).unwrap(), [3, 4, 5, 6]);
}

#[test]
fn one_row_of_a_batch_is_accepted() {
    let single = with(3);
    let snapshot = single.snapshot().unwrap();
    let mut batched = cache();
    batched.append(&rows(&[&[0, 1, 2], &[10, 11, 12]])).unwrap();
    batched.append(&rows(&[&[3, 4, 5], &[13, 14, 15]])).unwrap();
    let accepted = batched.accepted_append_from_batched_append(&snapshot, 5, 1, 2).unwrap().unwrap();
    assert_eq!((shown(&accepted), accepted.shape()), (vec![13, 14], &[1, 1, 2, 1][..]));
    assert!(batched.accepted_append_from_batched_append(&snapshot, 3, 1, 2).unwrap().is_none());
    let restored = RotatingCache::restore_from_snapshot(&snapshot, Some((&accepted).into()), 5).unwrap();
    assert_eq!(current(&restored).unwrap(), [1, 2, 13, 14]);
}

#[test]
fn an_acceptance_that_makes_no_sense_is_refused() {
    let mut cache = with(3);
    let snapshot = cache.snapshot().unwrap();
    cache.append(&tokens(3..6)).unwrap();
    let before = everything(&cache);
    for (keep, row, batch) in [(2, 0, 1), (7, 0, 1), (5, 1, 1), (5, 0, 0), (5, 0, 2), (u64::MAX, 0, 1), (3, 1, 1)] {
        let refused = code(cache.accepted_append_from_batched_append(&snapshot, keep, row, batch));
        assert_eq!(refused, Err(Code::InvalidArgument), "{keep} {row} {batch}");
    }
    assert_eq!(everything(&cache), before);
    cache.reset().unwrap();
    assert_eq!(code(cache.accepted_append_from_batched_append(&snapshot, 4, 0, 1)), Err(Code::CacheEmpty));
}

#[test]
fn a_restore_needs_as_many_accepted_tokens_as_it_counts() {
    let snapshot = with(3).snapshot().unwrap();
    let two = tokens([3, 4]);
    let restore = |accepted: bool, keep| {
        code(RotatingCache::restore_from_snapshot(&snapshot, accepted.then_some((&two).into()), keep))
    };
    for keep in [0, 2, 3, 4, 6, u64::MAX] {
        assert_eq!(restore(true, keep), Err(Code::InvalidArgument), "{keep}");
    }
    for keep in [0, 2, 4, 5] {
        assert_eq!(restore(false, keep), Err(Code::InvalidArgument), "{keep}");
    }
    assert_eq!((restore(true, 5), restore(false, 3)), (Ok(()), Ok(())));
    let wide = zeros(&[1, 1, 2, 2], DType::F32);
    let refused = RotatingCache::restore_from_snapshot(&snapshot, Some((&wide).into()), 5);
    assert_eq!(code(refused), Err(Code::ShapeMismatch));
}

#[test]
fn a_prefill_over_the_window_then_one_token() {
    let mut cache = cache();
    assert_eq!(shown(&cache.append(&tokens(0..7)).unwrap()), [0, 1, 2, 3, 4, 5, 6]);
    assert_eq!((cache.current_seq_len(), current(&cache).unwrap()), (7, vec![3, 4, 5, 6]));
    assert_eq!(shown(&cache.append(&tokens([7])).unwrap()), [4, 5, 6, 7]);
}

#[test]
fn nothing_appended_is_nothing_shown() {
    let mut cache = cache();
    assert!(cache.current_data().unwrap().is_none() && cache.all_data().unwrap().is_none());
    assert!(cache.last_append_result().is_none());
    let empty = cache.append(&zeros(&[3, 5, 0, 7], DType::F16)).unwrap();
    assert_eq!((empty.shape(), empty.runs().len(), empty.to_bytes().unwrap().len()), (&[3, 5, 0, 7][..], 0, 0));
    assert_eq!((cache.current_seq_len(), cache.dtype()), (0, None), "the shape stays open");
    assert!(cache.current_data().unwrap().is_none());
    cache.append(&tokens(0..6)).unwrap();
    assert_eq!(shown(&cache.append(&tokens([])).unwrap()), [2, 3, 4, 5]);
    cache.reset().unwrap();
    assert_eq!((cache.current_seq_len(), cache.max_seq_len(), current(&cache)), (0, 4, None));
    assert!(cache.last_append_result().is_none());
}

#[test]
fn the_capacity_counts_no_slack_and_doubles_up_to_the_window() {
    let options = RotatingCacheOptions { max_seq_len: 12, capacity_seq_len: Some(0), ..Default::default() };
    let mut cache = made(options.clone());
    let mut capacities = Vec::new();
    for token in 0..14 {
        cache.append(&tokens([token])).unwrap();
        capacities.push(cache.capacity_seq_len());
        let slots = cache.all_data().unwrap().unwrap().shape()[2] as u32;
        assert_eq!(slots, cache.capacity_seq_len() + if cache.capacity_seq_len() == 12 { 64 } else { 0 });
    }
    assert_eq!(capacities, [1, 2, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12, 12, 12]);
    let cut = made(RotatingCacheOptions { capacity_seq_len: Some(100), sinks: 3, ..options });
    assert_eq!(cut.capacity_seq_len(), 15);
}

#[test]
fn a_snapshot_is_appended_to_when_it_is_of_the_same_tokens_and_window() {
    let mut cache = with(5);
    let snapshot = cache.snapshot().unwrap();
    assert!(cache.can_append_from_snapshot(&snapshot, 0) && cache.can_append_from_snapshot(&snapshot, 4));
    assert!(!cache.can_append_from_snapshot(&snapshot, 5));
    let other = RotatingCacheOptions { max_seq_len: 5, ..Default::default() };
    let mut other = made(other);
    other.append(&tokens(0..5)).unwrap();
    assert!(!other.can_append_from_snapshot(&snapshot, 1));
    assert_eq!(code(other.restore(&snapshot)), Err(Code::SnapshotInvalid));
    cache.append(&tokens([5])).unwrap();
    assert!(!cache.can_append_from_snapshot(&snapshot, 1));
    assert_eq!((snapshot.current_seq_len(), snapshot.max_seq_len(), snapshot.retained_len()), (5, 4, 4));
    let wide = zeros(&[1, 1, 2, 2], DType::F32);
    let mut wide_cache = self::cache();
    wide_cache.append(&wide).unwrap();
    assert_eq!(code(wide_cache.restore(&snapshot)), Err(Code::SnapshotInvalid));
}
