//! `RotatingKvCache`: misuse, then values; the same window over K and V.

use candle_core::DType;
use kvtide_core::Code;
use kvtide_tensor::{RotatingCacheOptions, RotatingKvCache};

use crate::numbers::{rows, shown, tokens, zeros};
use crate::outcome::code;
use crate::windows::pair;

fn cache(sinks: u32) -> RotatingKvCache {
    let options = RotatingCacheOptions { max_seq_len: 4, sinks, slack: Some(2), ..Default::default() };
    RotatingKvCache::new(options).unwrap()
}

fn current(cache: &RotatingKvCache) -> [Vec<u32>; 2] {
    pair(cache.current_data().unwrap().unwrap()).each_ref().map(shown)
}

#[test]
fn the_sequence_of_k_and_v_is_dimension_2() {
    let options = RotatingCacheOptions { dim: 1, max_seq_len: 4, ..Default::default() };
    assert_eq!(code(RotatingKvCache::new(options)), Err(Code::InvalidArgument));
}

#[test]
fn k_and_v_that_do_not_agree_are_refused_and_change_nothing() {
    let mut cache = cache(0);
    let two = tokens([7, 8]);
    let wrong = [
        (zeros(&[1, 1, 3, 1], DType::F32), Code::ShapeMismatch),
        (zeros(&[1, 2, 2, 1], DType::F32), Code::ShapeMismatch),
        (zeros(&[1, 1, 2, 3], DType::F32), Code::ShapeMismatch),
        (zeros(&[2, 1], DType::F32), Code::ShapeMismatch),
        (zeros(&[1, 1, 2, 1], DType::BF16), Code::DtypeMismatch),
    ];
    for (tensor, expected) in &wrong {
        assert_eq!(code(cache.append(&two, tensor)), Err(*expected));
        assert_eq!((cache.current_seq_len(), cache.dtype()), (0, None));
    }
    assert_eq!(code(cache.append(&zeros(&[1, 1, 2], DType::F32), &two)), Err(Code::ShapeMismatch));
    cache.append(&tokens(0..3), &tokens(10..13)).unwrap();
    for (tensor, expected) in &wrong {
        assert_eq!(code(cache.append(&two, tensor)), Err(*expected));
        assert_eq!(code(cache.append(tensor, &two)), Err(*expected));
        assert_eq!(current(&cache), [[0, 1, 2], [10, 11, 12]]);
    }
}

#[test]
fn k_and_v_slide_together() {
    let mut cache = cache(0);
    cache.append(&tokens(0..3), &tokens(10..13)).unwrap();
    let seen = cache.append(&tokens(3..6), &tokens(13..16)).unwrap();
    assert_eq!((shown(&seen.k), shown(&seen.v)), ((0..6).collect(), (10..16).collect()));
    assert_eq!(current(&cache), [[2, 3, 4, 5], [12, 13, 14, 15]]);
    let seen = cache.append(&tokens([6]), &tokens([16])).unwrap();
    assert_eq!(shown(&seen.v), [13, 14, 15, 16]);
    assert_eq!(cache.last_append_result().map(|kv| shown(&kv.k)), Some(vec![3, 4, 5, 6]));
}

#[test]
fn sinks_stay_whatever_slides_past() {
    let mut cache = cache(2);
    for token in 0..40 {
        let seen = cache.append(&tokens([token]), &tokens([token + 100])).unwrap();
        let expected: Vec<u32> = if token < 6 {
            (0..=token).collect()
        } else {
            [&[0, 1][..], &(token - 3..=token).collect::<Vec<_>>()].concat()
        };
        assert_eq!(shown(&seen.k), expected);
        assert_eq!(shown(&seen.v), expected.iter().map(|number| number + 100).collect::<Vec<_>>());
    }
    assert_eq!((cache.retained_len(), cache.sinks(), cache.max_seq_len()), (6, 2, 4));
    assert_eq!(code(cache.set_len(39)), Err(Code::CannotRollBack));
    let snapshot = cache.snapshot().unwrap();
    assert!(cache.can_append_from_snapshot(&snapshot, 6) && !cache.can_append_from_snapshot(&snapshot, 7));
}

#[test]
fn accepted_rows_of_k_and_v_go_on_from_a_snapshot() {
    let mut cache = cache(0);
    let (k, v) = (rows(&[&[0, 1, 2], &[5, 6, 7]]), rows(&[&[10, 11, 12], &[15, 16, 17]]));
    cache.append(&k, &v).unwrap();
    let snapshot = cache.snapshot().unwrap();
    cache.append(&k, &v).unwrap();
    let accepted = cache.accepted_append_from_batched_append(&snapshot, 5, 0, 1).unwrap().unwrap();
    assert_eq!((shown(&accepted.k), shown(&accepted.v)), (vec![0, 1, 5, 6], vec![10, 11, 15, 16]));
    let pair = Some(((&accepted.k).into(), (&accepted.v).into()));
    let restored = RotatingKvCache::restore_from_snapshot(&snapshot, pair, 5).unwrap();
    assert_eq!(current(&restored), [[1, 2, 0, 1, 6, 7, 5, 6], [11, 12, 10, 11, 16, 17, 15, 16]]);
    let (short, wide) = (tokens([3]), zeros(&[1, 1, 2, 1], DType::F32));
    let unlike = Some(((&accepted.k).into(), (&short).into()));
    assert_eq!(code(RotatingKvCache::restore_from_snapshot(&snapshot, unlike, 5)), Err(Code::ShapeMismatch));
    let unlike = Some(((&wide).into(), (&wide).into()));
    assert_eq!(code(RotatingKvCache::restore_from_snapshot(&snapshot, unlike, 5)), Err(Code::ShapeMismatch));
}
