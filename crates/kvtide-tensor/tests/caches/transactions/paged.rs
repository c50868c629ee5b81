//! A paged sequence as one more kind: an adapter that owns its cache.
//!
//! The batch rows of the tests are the layers. Its content is gathered, so it has no views that become stale. The
//! differences of a paged sequence, which the test bodies query by the constants of [`Kind`]:
//!
//! - its rows have one shape from the start, so an empty sequence accepts no other (`SHAPED`);
//! - it takes blocks, which exist from the start: where others run out of memory, it runs out of blocks (`FULL`);
//! - it ends with its owner, and is not closed before (`CLOSES`); the remaining check is that all blocks are free.
//!
//! Its window keeps whole blocks, so it is not a sliding kind here; `paged_engine` has sliding ones.

use std::cell::RefCell;
use std::sync::Arc;

use candle_core::Device;
use kvtide_core::{Code, TransactionId};
use kvtide_tensor::buffers::Source;
use kvtide_tensor::runtime::Budget;
use kvtide_tensor::{
    BeginOptions, PagedKvCache, PagedKvCacheOptions, PagedSnapshot, Result, Stats, Transactional, View,
};

use super::kind::{Change, Kind, Setup};
use crate::tokens::Rows;

const BLOCK_SIZE: u32 = 4;

/// A cache, and its only sequence.
pub struct Paged {
    cache: RefCell<PagedKvCache>,
    id: u64,
    rows: Rows,
}

impl Paged {
    fn gathered(&self) -> Result<[Vec<u8>; 2]> {
        let mut cache = self.cache.borrow_mut();
        let mut bytes = [Vec::new(), Vec::new()];
        for layer in 0..self.rows.dims[0] as u32 {
            let kv = cache.gather(self.id, layer)?;
            bytes[0].extend(kv.k.to_bytes()?);
            bytes[1].extend(kv.v.to_bytes()?);
        }
        Ok(bytes)
    }
}

impl Transactional for Paged {
    type Shown = [Vec<u8>; 2];
    type Seen = [Vec<u8>; 2];

    fn begin_draft(&mut self, parent: Option<TransactionId>, options: BeginOptions) -> Result<TransactionId> {
        self.cache.get_mut().sequence(self.id)?.begin_draft(parent, options)
    }

    fn append_draft<'a>(
        &mut self,
        id: TransactionId,
        k: impl Into<Source<'a>>,
        v: impl Into<Source<'a>>,
        parents: Option<&[i32]>,
    ) -> Result<[Vec<u8>; 2]> {
        self.cache.get_mut().sequence(self.id)?.append_draft(id, k, v, parents)?;
        self.gathered()
    }

    fn commit_draft(&mut self, id: TransactionId, tokens: Option<u64>) -> Result<()> {
        self.cache.get_mut().sequence(self.id)?.commit_draft(id, tokens)
    }

    fn commit_draft_path(&mut self, id: TransactionId, path: &[u32]) -> Result<()> {
        self.cache.get_mut().sequence(self.id)?.commit_draft_path(id, path)
    }

    fn rollback_draft(&mut self, id: TransactionId) -> Result<()> {
        self.cache.get_mut().sequence(self.id)?.rollback_draft(id)
    }

    fn drop_draft(&mut self, id: TransactionId) {
        if let Ok(mut sequence) = self.cache.get_mut().sequence(self.id) {
            sequence.drop_draft(id);
        }
    }

    fn drafted(&self, id: TransactionId) -> Result<u32> {
        self.cache.borrow_mut().sequence(self.id)?.drafted(id)
    }

    fn draft_mask(&self, id: TransactionId, budget: &Arc<Budget>) -> Result<View> {
        self.cache.borrow_mut().sequence(self.id)?.draft_mask(id, budget)
    }

    fn draft_positions(&self, id: TransactionId) -> Result<Vec<u64>> {
        self.cache.borrow_mut().sequence(self.id)?.draft_positions(id)
    }
}

impl Kind for Paged {
    type Snapshot = PagedSnapshot;
    const SHAPED: bool = true;
    const FULL: Code = Code::OutOfBlocks;
    const CLOSES: bool = false;

    fn new(setup: &Setup) -> Result<Self> {
        let rows = setup.rows.clone();
        let tokens = setup.limit.map_or(2048, |bytes| bytes / (2 * rows.token_bytes()));
        let mut cache = PagedKvCache::new(PagedKvCacheOptions {
            capacity: tokens as u32 / BLOCK_SIZE,
            block_size: BLOCK_SIZE,
            num_layers: rows.dims[0] as u32,
            num_kv_heads: rows.dims[1] as u32,
            head_dim: rows.dims[3] as u32,
            dtype: rows.dtype,
            ..Default::default()
        })?;
        let id = cache.create_sequence()?;
        Ok(Paged { cache: RefCell::new(cache), id, rows })
    }

    fn feed(&mut self, tokens: usize, [k, v]: [Source<'_>; 2]) -> Result<[Vec<u8>; 2]> {
        self.cache.get_mut().append(&[self.id], k, v, Some(&[0, tokens as u32]))?;
        self.gathered()
    }

    fn visible(&self) -> Result<Option<[Vec<u8>; 2]>> {
        if self.length() == 0 { Ok(None) } else { self.gathered().map(Some) }
    }

    fn bytes(seen: &[Vec<u8>; 2]) -> Result<[Vec<u8>; 2]> {
        Ok(seen.clone())
    }

    fn views(&self, _: [Vec<u8>; 2]) -> Result<Option<([View; 2], [View; 2])>> {
        Ok(None)
    }

    fn length(&self) -> u64 {
        self.cache.borrow().sequence_length(self.id).into()
    }

    fn cut(&mut self, len: u64) -> Option<Result<()>> {
        Some(self.cache.get_mut().truncate(self.id, len as u32))
    }

    fn snapshot(&self) -> Option<PagedSnapshot> {
        self.cache.borrow_mut().snapshot(self.id).ok()
    }

    fn restore(&mut self, snapshot: &PagedSnapshot) -> Result<()> {
        self.cache.get_mut().restore(self.id, snapshot)
    }

    fn stats(&self) -> Stats {
        self.cache.borrow().stats()
    }

    fn close(&mut self) {
        let cache = self.cache.get_mut();
        cache.drop_sequence(self.id).expect("a sequence that is never dropped before");
        let stats = cache.pools().expect("a cache that is whole")[0];
        assert_eq!((stats.active, stats.free), (0, stats.total), "no token's id was known, so that none is cached");
    }

    fn invariants(&self) -> std::result::Result<(), String> {
        self.cache.borrow().check_invariants()
    }

    fn changes() -> Vec<Change<Self>> {
        vec![
            ("append", |paged, [k, v]| paged.feed(1, [k, v]).map(|_| ())),
            ("write_tokens", |paged, _| {
                let [_, heads, _, dim] = paged.rows.dims[..] else { unreachable!("four dimensions") };
                let zeros = candle_core::Tensor::zeros((heads, 1, dim), paged.rows.dtype.candle(), &Device::Cpu)?;
                paged.cache.get_mut().write_tokens(paged.id, 0, 0, &zeros, &zeros)
            }),
            ("truncate", |paged, _| paged.cache.get_mut().truncate(paged.id, 0)),
            ("restore", |paged, _| {
                let snapshot = paged.cache.get_mut().snapshot(paged.id)?;
                paged.restore(&snapshot)
            }),
        ]
    }
}
