//! Sources in the cache's own memory, or shared by K and V.

use kvtide_tensor::{KvCache, KvCacheOptions, RollbackCache, RotatingCache, RotatingCacheOptions, RotatingKvCache};

use crate::numbers::{shown, tokens};
use crate::windows::pair;

fn kv(initial_capacity: u32) -> KvCache {
    let mut cache = KvCache::new(KvCacheOptions { initial_capacity, ..Default::default() }).unwrap();
    cache.update(&tokens(0..4), &tokens(10..14)).unwrap();
    cache
}

fn window(slack: u32) -> RotatingCacheOptions {
    RotatingCacheOptions { max_seq_len: 4, slack: Some(slack), ..Default::default() }
}

#[test]
fn a_cache_takes_its_own_views_where_it_has_room_and_where_it_grows() {
    for capacity in [16, 4] {
        let mut cache = kv(capacity);
        let own = cache.get_kv().unwrap();
        let seen = cache.update(&own.v, &own.k).unwrap();
        assert_eq!(shown(&seen.k), [0, 1, 2, 3, 10, 11, 12, 13]);
        assert_eq!(shown(&seen.v), [10, 11, 12, 13, 0, 1, 2, 3]);
    }
}

#[test]
fn a_cache_takes_a_row_that_the_append_itself_overwrites() {
    let mut cache = kv(8);
    let cut = cache.get_kv().unwrap();
    let (k, v) = (cut.k.narrow(2, 2, 2).unwrap(), cut.v.narrow(2, 1, 2).unwrap());
    cache.truncate(1).unwrap();
    let seen = cache.update(&k, &v).unwrap();
    assert_eq!(pair(seen).each_ref().map(shown), [[0, 2, 3], [10, 11, 12]]);
    assert!(k.is_stale() && v.is_stale());
}

#[test]
fn a_raw_tensor_of_the_cache_is_a_source_like_any_other() {
    let mut cache = kv(8);
    let (k, v) = cache.raw_tensors().unwrap();
    let seen = cache.update(&k.narrow(2, 0, 2).unwrap(), &v.narrow(2, 2, 2).unwrap()).unwrap();
    assert_eq!(pair(seen).each_ref().map(shown), [[0, 1, 2, 3, 0, 1], [10, 11, 12, 13, 12, 13]]);
}

#[test]
fn k_and_v_may_be_parts_of_one_foreign_buffer() {
    let foreign = kv(8).get_kv().unwrap();
    let mut cache = kv(4);
    let seen = cache.update(&foreign.k, &foreign.v).unwrap();
    assert_eq!(shown(&seen.v), [10, 11, 12, 13, 10, 11, 12, 13]);
    let seen = cache.update(&foreign.v, &foreign.v).unwrap();
    assert_eq!(shown(&seen.k)[8..], [10, 11, 12, 13]);
    let one = tokens(0..8);
    let (k, v) = (one.narrow(2, 0, 2).unwrap(), one.narrow(2, 5, 2).unwrap());
    let seen = cache.update(&k, &v).unwrap();
    assert_eq!((shown(&seen.k)[12..].to_vec(), shown(&seen.v)[12..].to_vec()), (vec![0, 1], vec![5, 6]));
}

#[test]
fn a_window_takes_its_own_view_also_while_it_moves() {
    for slack in [0, 1, 3, 9] {
        let mut cache = RotatingCache::new(window(slack)).unwrap();
        cache.append(&tokens(0..6)).unwrap();
        let own = cache.current_data().unwrap().unwrap();
        assert_eq!(shown(&cache.append(&own).unwrap()), [2, 3, 4, 5, 2, 3, 4, 5], "slack {slack}");
        for _ in 0..9 {
            let own = cache.current_data().unwrap().unwrap();
            let oldest = shown(&own)[0];
            let seen = cache.append(&own.narrow(2, 0, 1).unwrap()).unwrap();
            assert_eq!(shown(&seen)[3], oldest);
        }
    }
}

#[test]
fn a_window_takes_its_own_result_that_lies_elsewhere() {
    let mut cache = RotatingKvCache::new(window(0)).unwrap();
    let seen = cache.append(&tokens(0..9), &tokens(10..19)).unwrap();
    let (k, v) = (seen.k.narrow(2, 0, 3).unwrap(), seen.v.narrow(2, 6, 3).unwrap());
    let seen = cache.append(&k, &v).unwrap();
    assert_eq!(pair(seen).each_ref().map(shown), [[5, 6, 7, 8, 0, 1, 2], [15, 16, 17, 18, 16, 17, 18]]);
}

#[test]
fn a_draft_takes_its_own_tokens() {
    let mut cache = RollbackCache::new(Default::default()).unwrap();
    cache.append(&tokens(0..3), &tokens(10..13), None).unwrap();
    cache.commit(3).unwrap();
    let own = cache.current().unwrap().unwrap();
    let seen = cache.append(&own.k, &own.v, Some(&[-1, -1, 1])).unwrap();
    assert_eq!(shown(&seen.k), [0, 1, 2, 0, 1, 2]);
    cache.accept_path(&[1, 2]).unwrap();
    assert_eq!(shown(&cache.current().unwrap().unwrap().v), [10, 11, 12, 11, 12]);
}
