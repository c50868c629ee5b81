//! Tests for single kinds of caches, and single hazards.

use kvtide_core::{Code, TransactionId};
use kvtide_tensor::buffers::Source;
use kvtide_tensor::{BeginOptions, KvCache, KvTransaction, RollbackCache, RotatingKvCache, Transactional};

use super::kind::{Kind, Setup};
use super::semantics::{bytes, draft, retained, setup, shown, subject};
use crate::outcome::code;
use crate::tokens::{Id, place};

#[test]
fn a_growing_cache_refuses_what_goes_over_its_end_before_anything_changes() {
    for stable in [false, true] {
        let mut cache: KvCache = subject(&Setup { max: 6, stable, ..setup(4, 0, 0) }, 3);
        let address = place(&cache.raw().unwrap().k);
        assert_eq!(code(cache.begin(BeginOptions { max_tokens: Some(4) })), Err(Code::CacheOverflow));
        let mut open = cache.begin(BeginOptions { max_tokens: Some(3) }).unwrap();
        assert_eq!(open.cache().capacity(), 6);
        draft(&mut open, &[100, 101], None).unwrap();
        assert_eq!(code(draft(&mut open, &[102, 103], None)), Err(Code::CacheOverflow));
        draft(&mut open, &[102], None).unwrap();
        assert_eq!(stable, place(&open.cache().raw().unwrap().k) == address);
        open.commit(Some(2)).unwrap();
        drop(open);
        assert_eq!(shown(&cache), Some(bytes(&[0, 1, 2, 100, 101])));
    }
}

#[test]
fn what_a_draft_keeps_is_committed_behind_committed_tokens() {
    let mut cache: RollbackCache = subject(&setup(4, 0, 0), 3);
    let mark = RollbackCache::snapshot(&cache);
    let mut open = cache.begin(BeginOptions::default()).unwrap();
    draft(&mut open, &[100, 101, 102], None).unwrap();
    assert_eq!((open.cache().total_len(), open.cache().committed_len()), (6, 3));
    open.commit(Some(2)).unwrap();
    drop(open);
    assert_eq!((cache.total_len(), cache.committed_len(), cache.tree().len()), (5, 5, 0));
    cache.rollback(&mark).unwrap();
    assert_eq!(shown(&cache), Some(bytes(&[0, 1, 2])));
}

#[test]
fn a_mark_of_a_branch_that_a_draft_has_overwritten_is_refused() {
    let mut cache: RollbackCache = subject(&setup(4, 0, 0), 2);
    let early = RollbackCache::snapshot(&cache);
    let [k, v] = [0, 1].map(|part| setup(4, 0, 0).rows.tensor(part, &[10, 11]));
    cache.feed(2, [Source::from(&k), Source::from(&v)]).unwrap();
    let gone = RollbackCache::snapshot(&cache);
    cache.rollback(&early).unwrap();
    let mut open = cache.begin(BeginOptions::default()).unwrap();
    draft(&mut open, &[100, 101], None).unwrap();
    open.commit(None).unwrap();
    drop(open);
    assert_eq!((cache.committed_len(), code(cache.rollback(&gone))), (4, Err(Code::SnapshotInvalid)));
    cache.rollback(&early).unwrap();
}

#[test]
fn what_a_draft_keeps_is_tentative_behind_tentative_tokens() {
    let mut cache: RollbackCache = subject(&setup(4, 0, 0), 3);
    let [k, v] = [0, 1].map(|part| setup(4, 0, 0).rows.tensor(part, &[10, 11, 12]));
    cache.append(&k, &v, Some(&[-1, -1, 0])).unwrap();
    let mut open = cache.begin(BeginOptions::default()).unwrap();
    draft(&mut open, &[100, 101, 102], Some(&[-1, -1, 0])).unwrap();
    // A draft follows the last tentative token, which follows the first one.
    assert_eq!(open.tree_positions().unwrap(), [5, 5, 6]);
    let mask = open.tree_mask().unwrap();
    assert_eq!(mask.shape(), [3, 9]);
    let seen: Vec<bool> = mask.to_f32().unwrap().into_iter().map(|value| value == 0.0).collect();
    let row = |nodes: &[usize]| (0..9).map(|column| column < 3 || nodes.contains(&(column - 3))).collect::<Vec<_>>();
    assert_eq!(seen, [row(&[0, 2, 3]), row(&[0, 2, 4]), row(&[0, 2, 3, 5])].concat());
    open.commit_path(&[0, 2]).unwrap();
    drop(open);
    assert_eq!((cache.total_len(), cache.committed_len()), (8, 3));
    assert_eq!(cache.tree().parents(), [-1, -1, 0, 2, 3]);
    cache.accept_path(&[0, 2, 3, 4]).unwrap();
    assert_eq!(shown(&cache), Some(bytes(&[0, 1, 2, 10, 12, 100, 102])));
}

#[test]
fn a_tree_behind_tentative_tokens_stays_one() {
    let mut cache: RollbackCache = subject(&setup(4, 0, 0), 1);
    let [k, v] = [0, 1].map(|part| setup(4, 0, 0).rows.tensor(part, &[10]));
    cache.append(&k, &v, None).unwrap();
    let mut open = cache.begin(BeginOptions::default()).unwrap();
    draft(&mut open, &[100, 101, 102, 103], Some(&[-1, -1, 1, 0])).unwrap();
    open.commit(Some(3)).unwrap();
    drop(open);
    assert_eq!(cache.tree().parents(), [-1, 0, 0, 2]);
    cache.accept_path(&[0, 2, 3]).unwrap();
    assert_eq!(shown(&cache), Some(bytes(&[0, 10, 101, 102])));
}

#[test]
fn a_window_counts_positions_in_the_mask_of_a_tree() {
    let mut cache: RotatingKvCache = subject(&setup(3, 1, 0), 9);
    let mut open = cache.begin(BeginOptions::default()).unwrap();
    draft(&mut open, &[100, 101, 102], Some(&[-1, -1, 0])).unwrap();
    // Kept are the sink 0 and 6, 7, 8; the nodes stand at 9, 9 and 10, and see three positions.
    let seen: Vec<u8> =
        open.tree_mask().unwrap().to_f32().unwrap().iter().map(|&value| u8::from(value == 0.0)).collect();
    assert_eq!(seen, [[1, 0, 1, 1, 1, 0, 0], [1, 0, 1, 1, 0, 1, 0], [1, 0, 0, 1, 1, 0, 1]].concat());
    assert_eq!(open.tree_positions().unwrap(), [9, 9, 10]);
}

#[test]
fn many_drafts_over_a_wrapping_window_move_it_no_more_than_appends_would() {
    let made = setup(32, 4, 32);
    let mut cache: RotatingKvCache = subject(&made, 40);
    let mut all: Vec<Id> = (0..40).collect();
    for round in 0..400 {
        let ids: Vec<Id> = (0..6).map(|place| 1000 + round * 6 + place).collect();
        let mut open = cache.begin(BeginOptions { max_tokens: Some(6) }).unwrap();
        draft(&mut open, &ids, None).unwrap();
        let kept = (round % 7).min(6);
        open.commit(Some(kept)).unwrap();
        all.extend(&ids[..kept as usize]);
        drop(open);
        assert_eq!(shown(&cache), Some(bytes(&retained::<RotatingKvCache>(&made, &all))));
    }
    let stats = cache.stats();
    assert_eq!(stats.growths, 5, "from 2 slots to 4, 8, 16, 32, and all");
    assert!(stats.compactions <= (all.len() as u64 - 40) / 26 + 1, "{stats:?}");
}

#[test]
fn work_in_the_background_keeps_a_draft_from_changing_but_not_from_being_dropped() {
    let mut cache: RotatingKvCache = subject(&setup(4, 1, 2), 9);
    let before = shown(&cache);
    let id = cache.begin_draft(None, BeginOptions::default()).unwrap();
    let [k, v] = [0, 1].map(|part| setup(4, 1, 2).rows.tensor(part, &[100]));
    let seen = cache.append_draft(id, &k, &v, None).unwrap();
    let pinned = seen.view(0).pinned().unwrap();
    assert_eq!(code(cache.append_draft(id, &k, &v, None)), Err(Code::Busy));
    assert_eq!(code(cache.commit_draft(id, None)), Err(Code::Busy));
    assert_eq!(code(cache.commit_draft_path(id, &[0])), Err(Code::Busy));
    assert_eq!(code(cache.rollback_draft(id)), Err(Code::Busy));
    assert_eq!(code(cache.begin_draft(Some(id), BeginOptions::default())), Err(Code::Busy));
    let read = pinned.to_bytes().unwrap();
    cache.drop_draft(id);
    assert_eq!(shown(&cache), before);
    assert_eq!(pinned.to_bytes().unwrap(), read);
}

#[test]
fn a_cache_that_was_closed_takes_its_transactions_with_it() {
    let mut cache: KvCache = subject(&setup(4, 1, 2), 9);
    let id = cache.begin_draft(None, BeginOptions::default()).unwrap();
    KvCache::close(&mut cache);
    assert_eq!(code(cache.commit_draft(id, None)), Err(Code::Disposed));
    assert_eq!(code(cache.drafted(id)), Err(Code::Disposed));
    assert_eq!(code(cache.begin(BeginOptions::default()).map(|_| ())), Err(Code::Disposed));
    cache.drop_draft(id);
}

#[test]
fn a_number_that_no_transaction_has_is_closed() {
    let mut cache: KvCache = subject(&setup(4, 1, 2), 9);
    for id in [0, 1, u64::MAX] {
        assert_eq!(code(cache.commit_draft(TransactionId::from_raw(id), None)), Err(Code::TransactionClosed));
    }
}

#[test]
fn more_room_than_can_be_counted_is_refused() {
    let mut cache: RotatingKvCache = subject(&setup(4, 1, 2), 9);
    for tokens in [u32::MAX, i32::MAX as u32] {
        let refused = code(cache.begin(BeginOptions { max_tokens: Some(tokens) }));
        assert_eq!(refused, Err(if tokens == u32::MAX { Code::InvalidArgument } else { Code::CacheOverflow }));
    }
    assert!(Kind::snapshot(&cache).is_some_and(|snapshot| cache.restore(&snapshot).is_ok()), "none is open");
}
