//! Failing launches of the contiguous caches.

use kvtide_tensor::{
    KvCache, KvCacheOptions, KvTransaction, Result, RollbackCache, RollbackCacheOptions, RotatingCacheOptions,
    RotatingKvCache, Transactional,
};

use crate::surviving::{Outcome, Shown, Subject, rows};

const ROWS: [usize; 2] = [2, 4];

fn some(tokens: usize, seed: usize) -> [candle_core::Tensor; 2] {
    [0, 1].map(|part| rows(1, ROWS[0], tokens, ROWS[1], 2 * seed + part))
}

fn shown(kv: kvtide_tensor::Kv) -> Result<Shown> {
    Ok(vec![kv.k.to_bytes()?, kv.v.to_bytes()?])
}

fn update(cache: &mut KvCache, tokens: usize, seed: usize) -> Result<()> {
    let [k, v] = some(tokens, seed);
    cache.update(&k, &v).map(drop)
}

const GROWING: Subject<KvCache> = Subject {
    make: || {
        let options = KvCacheOptions { num_kv_heads: 2, head_dim: 4, initial_capacity: 8, ..Default::default() };
        let mut cache = KvCache::new(options).unwrap();
        update(&mut cache, 5, 1).unwrap();
        cache
    },
    read: |cache| shown(cache.get_kv()?),
    check: KvCache::check_invariants,
    later: &[
        |cache| update(cache, 1, 9),
        |cache| cache.truncate(1),
        |cache| cache.snapshot().map(drop),
        |cache| cache.begin(Default::default()).map(drop),
        |cache| cache.raw().map(drop),
    ],
};

#[test]
fn a_growing_cache_survives() {
    // Behind what is there, and in a larger buffer: no live row changes.
    for tokens in [2, 20] {
        let outcome = GROWING.survives("append", |cache| update(cache, tokens, 2));
        assert_eq!(outcome.poisoned, 0, "{tokens} tokens");
    }
    let outcome = GROWING.survives("a draft, committed in part", |cache| {
        let mut draft = cache.begin(Default::default())?;
        let [k, v] = some(2, 3);
        draft.append(&k, &v, None)?;
        draft.append(&k, &v, None)?;
        draft.commit(Some(3))
    });
    assert_eq!(outcome.poisoned, 0);
    // The accepted nodes move to the front of the draft.
    GROWING.survives("a path", |cache| {
        let mut draft = cache.begin(Default::default())?;
        let [k, v] = some(4, 3);
        draft.append(&k, &v, Some(&[-1, -1, 1, 1]))?;
        draft.commit_path(&[1, 3])
    });
    GROWING.survives("what a snapshot reads is saved before it is written over", |cache| {
        let before = cache.snapshot()?;
        let content = shown(cache.get_kv()?)?;
        cache.truncate(2)?;
        let written = update(cache, 3, 4);
        // Either way the cache is as it was, for the call to begin again.
        let restored = cache.restore(&before);
        if restored.is_ok() {
            assert!(shown(cache.get_kv()?)? == content, "the snapshot shows what it saw");
        }
        written?;
        restored?;
        update(cache, 1, 5)
    });
    let mut other = (GROWING.make)();
    let snapshot = other.snapshot().unwrap();
    other.truncate(0).unwrap();
    GROWING.survives("a snapshot of another cache is copied", |cache| {
        cache.restore(&snapshot)?;
        update(cache, 1, 6)
    });
}

fn append(cache: &mut RotatingKvCache, tokens: usize, seed: usize) -> Result<()> {
    let [k, v] = some(tokens, seed);
    cache.append(&k, &v).map(drop)
}

fn rotating(tokens: usize) -> RotatingKvCache {
    let options = RotatingCacheOptions { max_seq_len: 6, sinks: 2, slack: Some(4), ..Default::default() };
    let mut cache = RotatingKvCache::new(options).unwrap();
    (0..tokens).for_each(|token| append(&mut cache, 1, token).unwrap());
    cache
}

const ROTATING: Subject<RotatingKvCache> = Subject {
    make: || rotating(9),
    read: |cache| cache.current_data()?.map_or(Ok(Vec::new()), shown),
    check: RotatingKvCache::check_invariants,
    later: &[
        |cache| append(cache, 1, 9),
        |cache| cache.reset(),
        |cache| cache.snapshot().map(drop),
        |cache| cache.begin(Default::default()).map(drop),
        |cache| cache.all_data().map(drop),
    ],
};

#[test]
fn a_window_survives() {
    // However full the slack is: in place, by a compaction, and more than the window holds.
    for (at, make) in [(|| rotating(9)) as fn() -> RotatingKvCache, || rotating(10), || rotating(11), || rotating(12)]
        .into_iter()
        .enumerate()
    {
        let subject = Subject { make, ..ROTATING };
        for tokens in [1, 3, 5, 20] {
            subject.survives(&format!("append {tokens} after {}", 9 + at), |cache| append(cache, tokens, 50));
            subject.survives("a draft", |cache| {
                let mut draft = cache.begin(Default::default())?;
                let [k, v] = some(tokens, 3);
                draft.append(&k, &v, None)?;
                draft.commit(Some(1))
            });
        }
        subject.survives("a compaction that a snapshot would lose to", |cache| {
            let before = cache.snapshot()?;
            let appended = (0..6).try_for_each(|token| append(cache, 1, 60 + token));
            if appended.is_err() {
                // As it was, for the call to begin again, unless it is poisoned.
                let _ = cache.restore(&before);
            }
            appended
        });
    }
}

fn tentative(cache: &mut RollbackCache, tokens: usize, parents: Option<&[i32]>) -> Result<()> {
    let [k, v] = some(tokens, 8);
    cache.append(&k, &v, parents).map(drop)
}

const ROLLBACK: Subject<RollbackCache> = Subject {
    make: || {
        let mut cache = RollbackCache::new(RollbackCacheOptions::default()).unwrap();
        tentative(&mut cache, 3, None).unwrap();
        cache.commit(3).unwrap();
        tentative(&mut cache, 4, Some(&[-1, -1, 1, 0])).unwrap();
        cache
    },
    read: |cache| cache.current()?.map_or(Ok(Vec::new()), shown),
    check: RollbackCache::check_invariants,
    later: &[
        |cache| tentative(cache, 1, None),
        |cache| cache.commit(4),
        |cache| cache.accept_path(&[0]),
        |cache| cache.begin(Default::default()).map(drop),
    ],
};

#[test]
fn tentative_tokens_survive() {
    for tokens in [1, 9] {
        assert_eq!(ROLLBACK.survives("append", |cache| tentative(cache, tokens, None)).poisoned, 0);
    }
    // Accepted nodes move over others.
    let outcome = ROLLBACK.survives("accept", |cache| cache.accept_path(&[1, 2]));
    assert_eq!(outcome, Outcome { unchanged: 0, poisoned: 1 });
}
