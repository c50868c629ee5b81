//! `RollbackCache`: misuse, then values.

use candle_core::DType;
use kvtide_core::Code;
use kvtide_tensor::{RollbackCache, RollbackCacheOptions};

use crate::numbers::{shown, tokens, zeros};
use crate::outcome::code;
use crate::windows::pair;

fn cache() -> RollbackCache {
    RollbackCache::new(RollbackCacheOptions::default()).unwrap()
}

/// Adds `numbers` to K and `numbers + 100` to V.
fn append(cache: &mut RollbackCache, numbers: std::ops::Range<u32>, parents: Option<&[i32]>) {
    let v = tokens(numbers.clone().map(|number| number + 100));
    cache.append(&tokens(numbers), &v, parents).unwrap();
    cache.check_invariants().unwrap();
}

/// A cache of so many tokens, all committed.
fn committed(tokens_so_far: u32) -> RollbackCache {
    let mut cache = cache();
    append(&mut cache, 0..tokens_so_far, None);
    cache.commit(tokens_so_far.into()).unwrap();
    cache
}

fn lengths(cache: &RollbackCache) -> (u32, u32) {
    (cache.total_len(), cache.committed_len())
}

fn current(cache: &RollbackCache) -> [Vec<u32>; 2] {
    pair(cache.current().unwrap().unwrap()).each_ref().map(shown)
}

fn everything(cache: &RollbackCache) -> String {
    format!("{:?} {:?} {:?} {:?}", lengths(cache), current(cache), cache.tree(), cache.stats())
}

#[test]
fn tensors_that_do_not_fit_are_refused_and_change_nothing() {
    let mut cache = committed(2);
    append(&mut cache, 2..4, None);
    let before = everything(&cache);
    let right = tokens([8, 9]);
    for (wrong, expected) in [
        (zeros(&[1, 1, 3, 1], DType::F32), Code::ShapeMismatch),
        (zeros(&[1, 2, 2, 1], DType::F32), Code::ShapeMismatch),
        (zeros(&[2, 1, 2, 1], DType::F32), Code::ShapeMismatch),
        (zeros(&[1, 1, 2, 2], DType::F32), Code::ShapeMismatch),
        (zeros(&[1, 1, 2], DType::F32), Code::ShapeMismatch),
        (zeros(&[1, 1, 2, 1], DType::F16), Code::DtypeMismatch),
    ] {
        assert_eq!(code(cache.append(&wrong, &right, None)), Err(expected));
        assert_eq!(code(cache.append(&right, &wrong, None)), Err(expected));
        assert!(cache.append(&wrong, &wrong, Some(&[-1, 0])).is_err());
        assert_eq!(everything(&cache), before);
    }
}

#[test]
fn rows_of_no_elements_are_refused() {
    let mut cache = cache();
    for shape in [[0, 1, 2, 1], [1, 0, 2, 1], [1, 1, 2, 0], [1, 0, i32::MAX as usize, 1]] {
        let none = zeros(&shape, DType::F32);
        assert_eq!(code(cache.append(&none, &none, None)), Err(Code::ShapeMismatch), "{shape:?}");
    }
    assert!(cache.current().unwrap().is_none());
}

#[test]
fn parents_that_make_no_tree_are_refused_and_change_nothing() {
    let mut cache = committed(2);
    append(&mut cache, 2..4, None);
    let before = everything(&cache);
    let two = tokens([8, 9]);
    for parents in [&[][..], &[0], &[0, 1, 2], &[2, 0], &[0, 3], &[-2, 0], &[i32::MIN, 0], &[0, i32::MAX]] {
        assert_eq!(code(cache.append(&two, &two, Some(parents))), Err(Code::InvalidArgument), "{parents:?}");
        assert_eq!(everything(&cache), before);
    }
    assert_eq!(code(cache.tree_mask(&[0])), Err(Code::InvalidArgument));
    assert_eq!(code(cache.tree_positions(&[-1, 1])), Err(Code::InvalidArgument));
}

#[test]
fn a_commit_outside_the_tentative_tokens_is_refused() {
    let mut cache = committed(3);
    append(&mut cache, 3..5, None);
    let before = everything(&cache);
    for len in [0, 2, 6, u64::from(u32::MAX) + 4, u64::MAX] {
        assert_eq!(code(cache.commit(len)), Err(Code::InvalidArgument), "{len}");
    }
    assert_eq!(everything(&cache), before);
    cache.commit(4).unwrap();
    assert_eq!(lengths(&cache), (5, 4));
}

#[test]
fn what_was_not_committed_is_taken_back() {
    let mut cache = cache();
    assert!(cache.current().unwrap().is_none());
    append(&mut cache, 0..3, None);
    assert_eq!(lengths(&cache), (3, 0));
    cache.commit(3).unwrap();
    assert_eq!(lengths(&cache), (3, 3));
    let mark = cache.snapshot();
    append(&mut cache, 3..8, None);
    assert_eq!((lengths(&cache), mark.committed_len()), ((8, 3), 3));
    cache.rollback(&mark).unwrap();
    assert_eq!((lengths(&cache), current(&cache)), ((3, 3), [vec![0, 1, 2], vec![100, 101, 102]]));
    append(&mut cache, 8..9, None);
    assert_eq!(current(&cache)[1], [100, 101, 102, 108]);
}

#[test]
fn several_marks_are_outstanding_and_an_older_one_may_be_taken() {
    let mut cache = committed(2);
    let first = cache.snapshot();
    append(&mut cache, 2..6, None);
    cache.commit(4).unwrap();
    let second = cache.snapshot();
    cache.rollback(&second).unwrap();
    assert_eq!(lengths(&cache), (4, 4));
    cache.rollback(&first).unwrap();
    assert_eq!(lengths(&cache), (2, 2));
    let before = everything(&cache);
    assert_eq!(code(cache.rollback(&second)), Err(Code::SnapshotInvalid), "it is ahead");
    assert_eq!(everything(&cache), before);
    append(&mut cache, 20..24, None);
    cache.commit(6).unwrap();
    assert_eq!(code(cache.rollback(&second)), Err(Code::SnapshotInvalid), "its branch was overwritten");
    assert_eq!(current(&cache)[0], [0, 1, 20, 21, 22, 23]);
    assert_eq!(code(committed(2).rollback(&first)), Err(Code::SnapshotInvalid), "it is of another cache");
    cache.rollback(&first).unwrap();
}

#[test]
fn an_accepted_path_follows_the_committed_tokens() {
    let mut cache = committed(2);
    append(&mut cache, 2..7, Some(&[-1, -1, 0, 2, 2]));
    let before = everything(&cache);
    for path in [&[2][..], &[0, 3], &[0, 2, 1], &[0, 0], &[1, 2], &[5], &[0, u32::MAX]] {
        assert_eq!(code(cache.accept_path(path)), Err(Code::InvalidPath), "{path:?}");
    }
    assert_eq!(everything(&cache), before);
    cache.accept_path(&[0, 2, 4]).unwrap();
    assert_eq!((lengths(&cache), current(&cache)), ((5, 5), [vec![0, 1, 2, 4, 6], vec![100, 101, 102, 104, 106]]));
    append(&mut cache, 10..12, Some(&[-1, -1]));
    cache.accept_path(&[]).unwrap();
    assert_eq!((lengths(&cache), current(&cache)[0].len()), ((5, 5), 5));
}

#[test]
fn a_tree_grows_over_several_appends_and_outlives_a_partial_commit() {
    let mut cache = committed(1);
    append(&mut cache, 1..4, Some(&[-1, 0, 0]));
    append(&mut cache, 4..6, Some(&[1, 2]));
    append(&mut cache, 6..8, None);
    cache.commit(2).unwrap();
    assert_eq!(code(cache.accept_path(&[0, 3])), Err(Code::InvalidPath), "node 3 follows node 1 now");
    cache.accept_path(&[1, 3, 4, 5]).unwrap();
    assert_eq!(current(&cache)[0], [0, 1, 3, 5, 6, 7]);
}

#[test]
fn a_mask_shows_each_node_its_ancestors_and_all_that_is_committed() {
    let cache = committed(2);
    let seen: Vec<u32> = cache.tree_mask(&[-1, 0, 0, 1]).unwrap().iter().map(|&mask| u32::from(mask == 0.)).collect();
    let rows = [[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 0, 0], [1, 1, 1, 0, 1, 0], [1, 1, 1, 1, 0, 1]];
    assert_eq!(seen, rows.concat());
    assert!(cache.tree_mask(&[-1, -1]).unwrap().contains(&f32::NEG_INFINITY));
    assert_eq!(cache.tree_positions(&[-1, 0, 0, 1]).unwrap(), [2, 3, 3, 4]);
    assert!(cache.tree_mask(&[]).unwrap().is_empty());
}

#[test]
fn no_tokens_can_be_appended_first() {
    let mut cache = cache();
    let seen = cache.append(&tokens([]), &tokens([]), None).unwrap();
    assert_eq!((seen.k.shape(), lengths(&cache)), (&[1, 1, 0, 1][..], (0, 0)));
    append(&mut cache, 0..3, None);
    assert_eq!(current(&cache)[0], [0, 1, 2]);
}
