//! The block pool, for callers that manage their own sequences.

use kvtide_core::paged::{BlockHandle, BlockPool};
use kvtide_tensor::runtime::Lease;
use napi::{Env, Result};
use napi_derive::napi;

use crate::border::argument::{count, whole};
use crate::border::handle::{Handle, budget, guard};
use crate::border::refusal::Outcome;

#[napi]
pub struct NativeBlockPool {
    pool: Handle<BlockPool>,
    lease: Option<Lease>,
}

/// Bytes that the pool uses per block: its state, its links in the free list, and its reference count.
const BLOCK_BYTES: u64 = 20;

pub(crate) fn block(value: f64) -> Outcome<BlockHandle> {
    Ok(BlockHandle::from_raw(whole("block", value)?))
}

#[napi]
impl NativeBlockPool {
    #[napi(constructor)]
    pub fn new(env: &Env, capacity: f64, watermark: f64) -> Result<Self> {
        guard(env, || {
            let capacity = count("capacity", capacity)?;
            let lease = Some(budget().take(u64::from(capacity) * BLOCK_BYTES)?);
            let mut pool = BlockPool::new(capacity)?;
            pool.set_watermark(count("watermark", watermark)?)?;
            Ok(NativeBlockPool { pool: Handle::new("BlockPool", pool), lease })
        })
    }

    #[napi]
    pub fn allocate(&mut self, env: &Env) -> Result<f64> {
        self.pool.change(env, |pool| Ok(pool.allocate()?.raw() as f64))
    }

    #[napi]
    pub fn try_allocate(&mut self, env: &Env) -> Result<Option<f64>> {
        self.pool.change(env, |pool| Ok(pool.try_allocate().map(|block| block.raw() as f64)))
    }

    #[napi]
    pub fn allocate_many(&mut self, env: &Env, n: f64) -> Result<Vec<f64>> {
        self.pool.change(env, |pool| {
            let blocks = pool.allocate_many(count("n", n)?)?;
            Ok(blocks.into_iter().map(|block| block.raw() as f64).collect())
        })
    }

    #[napi]
    pub fn free(&mut self, env: &Env, handle: f64) -> Result<()> {
        self.pool.change(env, |pool| Ok(pool.free(block(handle)?)?))
    }

    #[napi]
    pub fn free_many(&mut self, env: &Env, handles: &[f64]) -> Result<()> {
        self.pool.change(env, |pool| {
            let blocks = handles.iter().map(|&handle| block(handle)).collect::<Outcome<Vec<_>>>()?;
            Ok(pool.free_many(&blocks)?)
        })
    }

    #[napi]
    pub fn retain(&mut self, env: &Env, handle: f64) -> Result<()> {
        self.pool.change(env, |pool| Ok(pool.retain(block(handle)?)?))
    }

    #[napi]
    pub fn count(&self, env: &Env, handle: f64) -> Result<f64> {
        self.pool.read(env, |pool| Ok(pool.count(block(handle)?)?.into()))
    }

    /// True if this many blocks could be allocated without going below the watermark.
    #[napi]
    pub fn can_allocate(&self, env: &Env, n: f64) -> Result<bool> {
        self.pool.read(env, |pool| Ok(pool.can_allocate(count("n", n)?)))
    }

    #[napi]
    pub fn free_count(&self, env: &Env) -> Result<f64> {
        self.pool.read(env, |pool| Ok(pool.free_count().into()))
    }

    #[napi]
    pub fn total_count(&self, env: &Env) -> Result<f64> {
        self.pool.read(env, |pool| Ok(pool.total_count().into()))
    }

    #[napi]
    pub fn utilization(&self, env: &Env) -> Result<f64> {
        self.pool.read(env, |pool| Ok(pool.utilization()))
    }

    #[napi]
    pub fn dispose(&mut self, env: &Env) {
        self.lease = None;
        self.pool.dispose(env, |_| ());
    }
}
