//! Hazards for snapshots, and the cost of preserving them.

use kvtide_tensor::{KvCache, KvCacheOptions, RotatingCache, RotatingCacheOptions, Stats};

use crate::numbers::{shown, tokens};
use crate::tokens::place;

fn window(max_seq_len: u32, sinks: u32, slack: u32) -> RotatingCache {
    let options = RotatingCacheOptions { max_seq_len, sinks, slack: Some(slack), ..Default::default() };
    RotatingCache::new(options).unwrap()
}

fn current(cache: &RotatingCache) -> Vec<u32> {
    shown(&cache.current_data().unwrap().unwrap())
}

fn append(cache: &mut RotatingCache, numbers: std::ops::Range<u32>) {
    for number in numbers {
        cache.append(&tokens([number])).unwrap();
        cache.check_invariants().unwrap();
    }
}

fn kv(initial_capacity: u32, numbers: std::ops::Range<u32>) -> KvCache {
    let options = KvCacheOptions { initial_capacity, max_seq_len: 64, ..Default::default() };
    let mut cache = KvCache::new(options).unwrap();
    update(&mut cache, numbers);
    cache
}

fn update(cache: &mut KvCache, numbers: std::ops::Range<u32>) {
    cache.update(&tokens(numbers.clone()), &tokens(numbers)).unwrap();
    cache.check_invariants().unwrap();
}

/// The tokens of a cache whose K and V are alike.
fn content(cache: &KvCache) -> Vec<u32> {
    let kv = cache.get_kv().unwrap();
    assert!(kv.k.equals(&kv.v).unwrap());
    shown(&kv.k)
}

/// Bytes of one token in K and V.
const TOKEN: u64 = 8;

#[test]
fn a_snapshot_survives_the_compactions_that_follow() {
    for sinks in [0, 1, 3] {
        let mut cache = window(4, sinks, 2);
        append(&mut cache, 0..9);
        let (snapshot, seen) = (cache.snapshot().unwrap(), current(&cache));
        append(&mut cache, 9..60);
        let mut revived = RotatingCache::restore_from_snapshot(&snapshot, None, 9).unwrap();
        assert_eq!((current(&revived), revived.current_seq_len()), (seen.clone(), 9));
        append(&mut revived, 9..12);
        cache.restore(&snapshot).unwrap();
        assert_eq!((current(&cache), cache.current_seq_len()), (seen, 9));
        append(&mut cache, 9..12);
        assert_eq!(current(&cache), current(&revived));
    }
}

#[test]
fn a_compaction_with_a_living_snapshot_takes_a_new_buffer_once() {
    let mut cache = window(4, 0, 2);
    append(&mut cache, 0..6);
    let before = place(&cache.all_data().unwrap().unwrap());
    let snapshot = cache.snapshot().unwrap();
    append(&mut cache, 6..7);
    assert_ne!(place(&cache.all_data().unwrap().unwrap()), before);
    let stats = cache.stats();
    assert_eq!((stats.copies_on_write, stats.compactions, stats.copied_bytes), (1, 0, 3 * 4));
    assert_eq!((stats.held_bytes, stats.used_bytes), (6 * 4, 12 * 4));
    append(&mut cache, 7..13);
    assert_eq!((cache.stats().copies_on_write, cache.stats().compactions), (1, 2));
    drop(snapshot);
    assert_eq!((cache.stats().held_bytes, cache.stats().used_bytes), (0, 6 * 4));
}

#[test]
fn a_compaction_without_one_stays_in_its_buffer() {
    let mut cache = window(4, 0, 2);
    append(&mut cache, 0..6);
    drop(cache.snapshot().unwrap());
    let before = place(&cache.all_data().unwrap().unwrap());
    append(&mut cache, 6..9);
    assert_eq!(place(&cache.all_data().unwrap().unwrap()), before);
    assert_eq!((cache.stats().copies_on_write, cache.stats().compactions), (0, 1));
}

#[test]
fn growth_leaves_the_old_buffer_to_its_snapshots() {
    let mut cache = kv(4, 0..4);
    let snapshots = [cache.snapshot().unwrap(), cache.snapshot().unwrap()];
    update(&mut cache, 4..6);
    let Stats { growths, copies_on_write, copied_bytes, held_bytes, used_bytes, .. } = cache.stats();
    assert_eq!((growths, copies_on_write, copied_bytes), (1, 0, 4 * TOKEN));
    assert_eq!((held_bytes, used_bytes), (4 * TOKEN, 12 * TOKEN), "shared by both snapshots");
    update(&mut cache, 6..20);
    cache.restore(&snapshots[0]).unwrap();
    assert_eq!((content(&cache), cache.capacity()), (vec![0, 1, 2, 3], 4));
    cache.check_invariants().unwrap();
}

#[test]
fn a_write_after_a_truncate_saves_the_overwritten_rows_once() {
    let mut cache = kv(16, 0..8);
    let snapshots = [(); 3].map(|()| cache.snapshot().unwrap());
    cache.truncate(5).unwrap();
    update(&mut cache, 20..22);
    let stats = cache.stats();
    assert_eq!((stats.copies_on_write, stats.copied_bytes, stats.held_bytes), (1, 2 * TOKEN, 2 * TOKEN));
    cache.truncate(5).unwrap();
    update(&mut cache, 30..32);
    assert_eq!(cache.stats().copies_on_write, 1, "they are saved already");
    update(&mut cache, 32..34);
    let stats = cache.stats();
    assert_eq!((stats.copies_on_write, stats.copied_bytes), (2, 3 * TOKEN), "slot 7 alone was still to be saved");
    for snapshot in &snapshots {
        cache.restore(snapshot).unwrap();
        assert_eq!(content(&cache), (0..8).collect::<Vec<_>>());
        cache.check_invariants().unwrap();
    }
}

#[test]
fn snapshots_of_different_branches_live_side_by_side() {
    let mut cache = kv(16, 0..6);
    let first = cache.snapshot().unwrap();
    cache.truncate(3).unwrap();
    update(&mut cache, 20..24);
    let second = cache.snapshot().unwrap();
    cache.truncate(1).unwrap();
    update(&mut cache, 30..33);
    let third = cache.snapshot().unwrap();
    for _ in 0..2 {
        for (snapshot, expected) in
            [(&first, vec![0, 1, 2, 3, 4, 5]), (&second, vec![0, 1, 2, 20, 21, 22, 23]), (&third, vec![0, 30, 31, 32])]
        {
            cache.restore(snapshot).unwrap();
            assert_eq!(content(&cache), expected);
            cache.truncate(1).unwrap();
            update(&mut cache, 90..99);
        }
    }
}

#[test]
fn dropped_snapshots_cost_nothing() {
    let mut cache = kv(8, 0..8);
    let snapshots = [(); 3].map(|()| cache.snapshot().unwrap());
    cache.truncate(2).unwrap();
    update(&mut cache, 20..30);
    assert!(cache.stats().held_bytes > 0);
    drop(snapshots);
    let stats = cache.stats();
    assert_eq!((stats.held_bytes, stats.used_bytes), (0, stats.buffer_bytes));
    drop(cache.snapshot().unwrap());
    cache.truncate(2).unwrap();
    update(&mut cache, 40..44);
    assert_eq!(cache.stats().copies_on_write, stats.copies_on_write);
}

#[test]
fn a_snapshot_is_restored_after_its_cache_is_gone() {
    let mut cache = kv(4, 0..6);
    let snapshot = cache.snapshot().unwrap();
    cache.truncate(2).unwrap();
    update(&mut cache, 20..23);
    cache.close();
    let mut other = kv(0, 40..41);
    other.restore(&snapshot).unwrap();
    assert_eq!(content(&other), [0, 1, 2, 3, 4, 5]);
    drop(cache);
    other.truncate(3).unwrap();
    update(&mut other, 50..51);
    other.restore(&snapshot).unwrap();
    assert_eq!(content(&other), [0, 1, 2, 3, 4, 5]);
    let mut cache = window(4, 1, 2);
    append(&mut cache, 0..9);
    let snapshot = cache.snapshot().unwrap();
    drop(cache);
    let revived = RotatingCache::restore_from_snapshot(&snapshot, Some((&tokens([9, 10])).into()), 11).unwrap();
    assert_eq!((current(&revived), revived.sinks()), (vec![0, 7, 8, 9, 10], 1));
}
