//! The contiguous caches: each call of a scenario is tried while the first large allocation fails, then the second, and so
//! on, and then with every limit. After each failure, the cache has what it had.

use std::sync::Arc;

use kvtide_tensor::buffers::Source;
use kvtide_tensor::runtime::Budget;
use kvtide_tensor::{
    BeginOptions, DType, HostTensor, Kv, KvCache, KvCacheOptions, KvTransaction, Result, RollbackCache,
    RollbackCacheOptions, RotatingCacheOptions, RotatingKvCache, Transactional,
};

use crate::{DIM, Refusal, refusals, rows, tried};

/// A token has 1 KiB, so that each buffer is a large allocation.
const HEADS: usize = 4;

/// The length of a cache, and its rows.
type Seen = (u64, Option<Kv>);

/// A cache, the budget that its memory is taken from, and everything that can be seen of it.
struct Contiguous<C> {
    cache: C,
    budget: Arc<Budget>,
    seen: fn(&mut C) -> Result<Seen>,
    refusal: Refusal,
}

impl<C> Contiguous<C> {
    fn seen(&mut self) -> (u64, Vec<Vec<u8>>) {
        rows_of((self.seen)(&mut self.cache))
    }

    /// As [`tried`]; gives the number of refusals.
    fn tried<T>(&mut self, call: impl FnMut(&mut C) -> Result<T>) -> u32 {
        let seen = self.seen;
        tried(self.refusal, &self.budget, &mut self.cache, |cache| rows_of(seen(cache)), call).0
    }
}

/// The length, and the bytes of K and V.
fn rows_of(seen: Result<Seen>) -> (u64, Vec<Vec<u8>>) {
    let (length, kv) = seen.unwrap();
    (length, kv.map_or_else(Vec::new, |kv| vec![kv.k.to_bytes().unwrap(), kv.v.to_bytes().unwrap()]))
}

/// K or V of some tokens.
fn part(bytes: &[u8]) -> Source<'_> {
    HostTensor::new("k", bytes, DType::F32, &[1, HEADS, bytes.len() / 4 / DIM / HEADS, DIM]).unwrap().into()
}

fn tokens(seed: u32, count: usize) -> Vec<u8> {
    rows(seed, count * HEADS)
}

#[test]
fn a_growing_cache_is_as_it_was() {
    for refusal in refusals() {
        let budget = Budget::new(None);
        let options = KvCacheOptions {
            num_kv_heads: HEADS as u32,
            head_dim: DIM as u32,
            initial_capacity: 2,
            max_seq_len: 64,
            budget: Some(budget.clone()),
            ..Default::default()
        };
        let cache = KvCache::new(options).unwrap();
        let seen = |cache: &mut KvCache| Ok((u64::from(cache.seq_len()), Some(cache.get_kv()?)));
        let mut of = Contiguous { cache, budget, seen, refusal };
        let update = |cache: &mut KvCache, seed: u32, count: usize| {
            let bytes = tokens(seed, count);
            cache.update(part(&bytes), part(&bytes)).map(drop)
        };
        update(&mut of.cache, 1, 1).unwrap();
        // A larger buffer, twice.
        assert!(of.tried(|cache| update(cache, 2, 5)) > 0);
        assert!(of.tried(|cache| update(cache, 3, 20)) > 0);
        // Rows that a snapshot shows are saved before they are overwritten.
        let before = of.cache.snapshot().unwrap();
        of.cache.truncate(2).unwrap();
        of.tried(|cache| update(cache, 4, 9));
        of.tried(|cache| cache.restore(&before));
        assert_eq!(of.cache.seq_len(), 26);
        let bytes = tokens(5, 30);
        of.tried(|cache| {
            let mut draft = cache.begin(BeginOptions::default())?;
            draft.append(part(&bytes), part(&bytes), None)?;
            draft.commit(Some(12))
        });
        assert_eq!(of.cache.seq_len(), 38);
        of.cache.check_invariants().unwrap();
    }
}

#[test]
fn a_window_is_as_it_was() {
    for refusal in refusals() {
        let budget = Budget::new(None);
        let options = RotatingCacheOptions { max_seq_len: 8, budget: Some(budget.clone()), ..Default::default() };
        let cache = RotatingKvCache::new(options).unwrap();
        let seen = |cache: &mut RotatingKvCache| Ok((cache.current_seq_len(), cache.current_data()?));
        let mut of = Contiguous { cache, budget, seen, refusal };
        let append = |cache: &mut RotatingKvCache, seed: u32, count: usize| {
            let bytes = tokens(seed, count);
            cache.append(part(&bytes), part(&bytes)).map(drop)
        };
        // The first buffer, then compactions, and more than the window holds.
        assert!(of.tried(|cache| append(cache, 1, 1)) > 0);
        for (seed, count) in [(2, 5), (3, 7), (4, 30), (5, 1)] {
            of.tried(|cache| append(cache, seed, count));
        }
        let before = of.cache.snapshot().unwrap();
        let shown = of.seen();
        for seed in 6..20 {
            of.tried(|cache| append(cache, seed, 3));
        }
        of.tried(|cache| cache.restore(&before));
        assert!(of.seen() == shown);
        of.cache.check_invariants().unwrap();
    }
}

#[test]
fn tentative_tokens_are_as_they_were() {
    for refusal in refusals() {
        let budget = Budget::new(None);
        let options = RollbackCacheOptions { budget: Some(budget.clone()), ..Default::default() };
        let cache = RollbackCache::new(options).unwrap();
        let seen = |cache: &mut RollbackCache| Ok((u64::from(cache.committed_len()), cache.current()?));
        let mut of = Contiguous { cache, budget, seen, refusal };
        let append = |cache: &mut RollbackCache, seed: u32, count: usize, parents: Option<&[i32]>| {
            let bytes = tokens(seed, count);
            cache.append(part(&bytes), part(&bytes), parents).map(drop)
        };
        assert!(of.tried(|cache| append(cache, 1, 3, None)) > 0);
        of.cache.commit(2).unwrap();
        let mark = of.cache.snapshot();
        assert!(of.tried(|cache| append(cache, 2, 300, None)) > 0);
        of.tried(|cache| cache.rollback(&mark));
        of.tried(|cache| append(cache, 3, 4, Some(&[-1, -1, 1, 0])));
        of.tried(|cache| cache.accept_path(&[1, 2]));
        of.cache.check_invariants().unwrap();
    }
}
