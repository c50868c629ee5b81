//! The cost of an append in bytes copied.

use kvtide_tensor::{KvCache, KvCacheOptions, RotatingCacheOptions, RotatingKvCache};

use crate::numbers::{shown, tokens};

#[test]
fn a_token_in_a_full_window_copies_window_over_slack_rows() {
    for (window, slack) in [(64, 16), (100, 64), (32, 32), (16, 1)] {
        let options = RotatingCacheOptions { max_seq_len: window, slack: Some(slack), ..Default::default() };
        let mut cache = RotatingKvCache::new(options).unwrap();
        cache.append(&tokens(0..window), &tokens(0..window)).unwrap();
        let before = cache.stats().copied_bytes;
        let appends = 20 * (slack + 1);
        for token in 0..appends {
            cache.append(&tokens([token]), &tokens([token])).unwrap();
        }
        let rows = (cache.stats().copied_bytes - before) / 8;
        let most = u64::from(appends) * u64::from(window) / u64::from(slack);
        assert!(rows > 0 && rows <= most, "{rows} rows for {appends} tokens, window {window}, slack {slack}");
        assert_eq!((cache.stats().growths, cache.stats().copies_on_write), (0, 0));
    }
}

#[test]
fn a_growing_cache_copies_less_than_it_is_given() {
    let mut cache = KvCache::new(KvCacheOptions { initial_capacity: 0, ..Default::default() }).unwrap();
    for token in 0..1000 {
        cache.update(&tokens([token]), &tokens([token])).unwrap();
    }
    assert!(cache.stats().copied_bytes < 1024 * 8, "{:?}", cache.stats());
    assert_eq!(cache.stats().growths, 11);
    let before = cache.stats();
    let snapshots: Vec<_> = (0..100).map(|_| cache.snapshot().unwrap()).collect();
    cache.truncate(10).unwrap();
    cache.restore(&snapshots[50]).unwrap();
    assert_eq!(cache.stats(), before, "snapshots, truncates and restores copy nothing");
}

#[test]
fn rows_saved_one_by_one_are_found_without_a_search() {
    let options = KvCacheOptions { initial_capacity: 1 << 15, ..Default::default() };
    let mut cache = KvCache::new(options).unwrap();
    cache.update(&tokens(0..1 << 15), &tokens(0..1 << 15)).unwrap();
    let snapshots = [cache.snapshot().unwrap(), cache.snapshot().unwrap()];
    cache.truncate(0).unwrap();
    for token in 0..1 << 15 {
        cache.update(&tokens([token + 7]), &tokens([token + 7])).unwrap();
    }
    let stats = cache.stats();
    assert_eq!((stats.copies_on_write, stats.copied_bytes), (1 << 15, 8 << 15));
    cache.truncate(0).unwrap();
    cache.update(&tokens(0..99), &tokens(0..99)).unwrap();
    assert_eq!(cache.stats().copies_on_write, 1 << 15, "all rows are saved already");
    cache.restore(&snapshots[0]).unwrap();
    assert_eq!(shown(&cache.get_kv().unwrap().v), (0..1 << 15).collect::<Vec<_>>());
}
