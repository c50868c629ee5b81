//! The interface of every kind of cache to the tests of transactions: a new kind is one more `impl`.

use kvtide_core::Code;
use kvtide_tensor::buffers::Source;
use kvtide_tensor::{
    Kv, KvCache, KvCacheOptions, KvSnapshot, Result, RollbackCache, RollbackCacheOptions, RotatingCacheOptions,
    RotatingKvCache, RotatingSnapshot, Stats, Transactional, View,
};

use crate::tokens::Rows;
use crate::windows::pair;

/// The options of a cache. Each kind uses those that it has.
#[derive(Clone, Debug)]
pub struct Setup {
    pub rows: Rows,
    pub window: u32,
    pub sinks: u32,
    pub slack: Option<u32>,
    pub capacity: u32,
    pub max: u32,
    pub stable: bool,
    pub limit: Option<u64>,
}

/// A change of the cache itself.
pub type Change<C> = (&'static str, fn(&mut C, [Source<'_>; 2]) -> Result<()>);

/// A kind of cache.
pub trait Kind: Transactional + Sized {
    type Snapshot;
    /// It has a window, whose numbers are those of its setup.
    const WINDOW: bool = false;
    /// It has a most that it may hold.
    const BOUND: bool = false;
    /// It knows what its last append showed.
    const LATEST: bool = false;
    /// Its tokens have one shape from the start on.
    const SHAPED: bool = Self::BOUND;
    /// The error when its limit is reached.
    const FULL: Code = Code::OutOfMemory;
    /// It can end before its owner does.
    const CLOSES: bool = true;

    fn new(setup: &Setup) -> Result<Self>;
    /// Adds so many tokens, which stay.
    fn feed(&mut self, tokens: usize, sources: [Source<'_>; 2]) -> Result<Self::Seen>;
    /// Everything that it shows; nothing when there is nothing.
    fn visible(&self) -> Result<Option<Self::Seen>>;
    fn latest(&self) -> Option<Self::Seen> {
        None
    }
    /// The bytes of K and of V.
    fn bytes(seen: &Self::Seen) -> Result<[Vec<u8>; 2]>;
    /// Views of its memory, with one of the whole buffer.
    fn views(&self, seen: Self::Seen) -> Result<Option<([View; 2], [View; 2])>>;
    /// Tokens ever appended, or in it.
    fn length(&self) -> u64;
    /// Drops all but so many tokens, where it can.
    fn cut(&mut self, _len: u64) -> Option<Result<()>> {
        None
    }
    fn snapshot(&self) -> Option<Self::Snapshot>;
    fn restore(&mut self, snapshot: &Self::Snapshot) -> Result<()>;
    fn stats(&self) -> Stats;
    fn close(&mut self);
    fn invariants(&self) -> std::result::Result<(), String>;
    /// Every change of its own.
    fn changes() -> Vec<Change<Self>>;
}

impl Kind for KvCache {
    type Snapshot = KvSnapshot;
    const BOUND: bool = true;

    fn new(setup: &Setup) -> Result<Self> {
        KvCache::new(KvCacheOptions {
            batch_size: setup.rows.dims[0] as u32,
            num_kv_heads: setup.rows.dims[1] as u32,
            initial_capacity: setup.capacity,
            max_seq_len: setup.max,
            head_dim: setup.rows.dims[3] as u32,
            dtype: setup.rows.dtype,
            stable_addresses: setup.stable,
            memory_limit_bytes: setup.limit,
            ..Default::default()
        })
    }

    fn feed(&mut self, _: usize, [k, v]: [Source<'_>; 2]) -> Result<Kv> {
        self.update(k, v)
    }

    fn visible(&self) -> Result<Option<Kv>> {
        if self.is_empty() { Ok(None) } else { self.get_kv().map(Some) }
    }

    fn bytes(seen: &Kv) -> Result<[Vec<u8>; 2]> {
        Ok([seen.k.to_bytes()?, seen.v.to_bytes()?])
    }

    fn views(&self, seen: Kv) -> Result<Option<([View; 2], [View; 2])>> {
        Ok(Some((pair(seen), pair(self.raw()?))))
    }

    fn length(&self) -> u64 {
        self.seq_len().into()
    }

    fn cut(&mut self, len: u64) -> Option<Result<()>> {
        Some(self.truncate(len))
    }

    fn snapshot(&self) -> Option<KvSnapshot> {
        KvCache::snapshot(self).ok()
    }

    fn restore(&mut self, snapshot: &KvSnapshot) -> Result<()> {
        KvCache::restore(self, snapshot)
    }

    fn stats(&self) -> Stats {
        KvCache::stats(self)
    }

    fn close(&mut self) {
        KvCache::close(self);
    }

    fn invariants(&self) -> std::result::Result<(), String> {
        self.check_invariants()
    }

    fn changes() -> Vec<Change<Self>> {
        vec![
            ("update", |cache, [k, v]| cache.update(k, v).map(|_| ())),
            ("increment_seq_len", |cache, _| cache.increment_seq_len(0)),
            ("truncate", |cache, _| cache.truncate(0)),
            ("reset", |cache, _| cache.reset()),
            ("restore", |cache, _| cache.snapshot().and_then(|snapshot| cache.restore(&snapshot))),
        ]
    }
}

impl Kind for RotatingKvCache {
    type Snapshot = RotatingSnapshot<2>;
    const WINDOW: bool = true;
    const LATEST: bool = true;

    fn new(setup: &Setup) -> Result<Self> {
        RotatingKvCache::new(RotatingCacheOptions {
            max_seq_len: setup.window,
            sinks: setup.sinks,
            slack: setup.slack,
            capacity_seq_len: Some(setup.capacity),
            memory_limit_bytes: setup.limit,
            ..Default::default()
        })
    }

    fn feed(&mut self, _: usize, [k, v]: [Source<'_>; 2]) -> Result<Kv> {
        self.append(k, v)
    }

    fn visible(&self) -> Result<Option<Kv>> {
        self.current_data()
    }

    fn latest(&self) -> Option<Kv> {
        self.last_append_result()
    }

    fn bytes(seen: &Kv) -> Result<[Vec<u8>; 2]> {
        KvCache::bytes(seen)
    }

    fn views(&self, seen: Kv) -> Result<Option<([View; 2], [View; 2])>> {
        Ok(self.all_data()?.map(|whole| (pair(seen), pair(whole))))
    }

    fn length(&self) -> u64 {
        self.current_seq_len()
    }

    fn cut(&mut self, len: u64) -> Option<Result<()>> {
        Some(self.set_len(len))
    }

    fn snapshot(&self) -> Option<RotatingSnapshot<2>> {
        RotatingKvCache::snapshot(self).ok()
    }

    fn restore(&mut self, snapshot: &RotatingSnapshot<2>) -> Result<()> {
        RotatingKvCache::restore(self, snapshot)
    }

    fn stats(&self) -> Stats {
        RotatingKvCache::stats(self)
    }

    fn close(&mut self) {
        RotatingKvCache::close(self);
    }

    fn invariants(&self) -> std::result::Result<(), String> {
        self.check_invariants()
    }

    fn changes() -> Vec<Change<Self>> {
        vec![
            ("append", |cache, [k, v]| cache.append(k, v).map(|_| ())),
            ("try_set_len", |cache, _| cache.try_set_len(cache.current_seq_len())),
            ("set_len", |cache, _| cache.set_len(cache.current_seq_len())),
            ("reset", |cache, _| cache.reset()),
            ("restore", |cache, _| cache.snapshot().and_then(|snapshot| cache.restore(&snapshot))),
        ]
    }
}

impl Kind for RollbackCache {
    type Snapshot = ();

    fn new(setup: &Setup) -> Result<Self> {
        RollbackCache::new(RollbackCacheOptions { memory_limit_bytes: setup.limit, ..Default::default() })
    }

    fn feed(&mut self, _: usize, [k, v]: [Source<'_>; 2]) -> Result<Kv> {
        let seen = self.append(k, v, None)?;
        self.commit(self.total_len().into())?;
        Ok(seen)
    }

    fn visible(&self) -> Result<Option<Kv>> {
        self.current()
    }

    fn bytes(seen: &Kv) -> Result<[Vec<u8>; 2]> {
        KvCache::bytes(seen)
    }

    fn views(&self, seen: Kv) -> Result<Option<([View; 2], [View; 2])>> {
        Ok(self.current()?.map(|whole| (pair(seen), pair(whole))))
    }

    fn length(&self) -> u64 {
        self.total_len().into()
    }

    fn snapshot(&self) -> Option<()> {
        None
    }

    fn restore(&mut self, (): &()) -> Result<()> {
        Ok(())
    }

    fn stats(&self) -> Stats {
        RollbackCache::stats(self)
    }

    fn close(&mut self) {
        RollbackCache::close(self);
    }

    fn invariants(&self) -> std::result::Result<(), String> {
        self.check_invariants()
    }

    fn changes() -> Vec<Change<Self>> {
        vec![
            ("append", |cache, [k, v]| cache.append(k, v, None).map(|_| ())),
            ("commit", |cache, _| cache.commit(cache.committed_len().into())),
            ("rollback", |cache, _| cache.rollback(&cache.snapshot())),
            ("accept_path", |cache, _| cache.accept_path(&[])),
        ]
    }
}
