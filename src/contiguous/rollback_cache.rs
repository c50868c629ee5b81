//! The cache of tentative tokens.

use kvtide_tensor::runtime::device;
use kvtide_tensor::{DType, HostTensor, RollbackCache, RollbackCacheOptions, RollbackMark, View};
use napi::{Env, Result};
use napi_derive::napi;

use crate::border::argument::{ArrayArg, optional, whole};
use crate::border::handle::{Handle, budget, guard};
use crate::border::process::NativeStats;
use crate::border::tensor::{CacheViews, Children, NativeBuffer, NativeView, TensorArg, source};

#[napi]
pub struct NativeRollbackCache {
    pub(crate) cache: Handle<RollbackCache>,
    pub(crate) views: CacheViews,
}

/// A mark: a committed length to roll back to.
#[napi]
pub struct NativeRollbackMark {
    mark: Handle<RollbackMark>,
}

#[napi]
impl NativeRollbackCache {
    #[napi(constructor)]
    pub fn new(env: &Env, device_name: String, memory_limit_bytes: Option<f64>) -> Result<Self> {
        guard(env, || {
            let cache = RollbackCache::new(RollbackCacheOptions {
                device: device(&device_name)?,
                memory_limit_bytes: optional("memoryLimitBytes", memory_limit_bytes, whole)?,
                budget: Some(budget()),
            })?;
            Ok(NativeRollbackCache { cache: Handle::new("RollbackCache", cache), views: CacheViews::default() })
        })
    }

    #[napi]
    pub fn total_len(&self, env: &Env) -> Result<f64> {
        self.cache.read(env, |cache| Ok(cache.total_len().into()))
    }

    #[napi]
    pub fn committed_len(&self, env: &Env) -> Result<f64> {
        self.cache.read(env, |cache| Ok(cache.committed_len().into()))
    }

    #[napi]
    pub fn append(
        &mut self,
        env: &Env,
        k: TensorArg,
        v: TensorArg,
        meta: ArrayArg,
        parents: Option<&[i32]>,
    ) -> Result<Option<NativeBuffer>> {
        self.cache.change(env, |cache| {
            let meta = meta.numbers()?;
            let shown = cache.append_shown(source("k", &k, meta, 0)?, source("v", &v, meta, 1)?, parents)?;
            self.views.show(&shown, meta)
        })
    }

    #[napi]
    pub fn commit(&mut self, env: &Env, len: f64) -> Result<()> {
        self.cache.change(env, |cache| Ok(cache.commit(whole("len", len)?)?))
    }

    #[napi]
    pub fn snapshot(&self, env: &Env) -> Result<NativeRollbackMark> {
        let mark = self.cache.read(env, |cache| Ok(cache.snapshot()))?;
        Ok(NativeRollbackMark { mark: Handle::new("RollbackMark", mark) })
    }

    #[napi]
    pub fn rollback(&mut self, env: &Env, mark: &NativeRollbackMark) -> Result<()> {
        self.cache.change(env, |cache| Ok(cache.rollback(mark.mark.get()?)?))
    }

    #[napi]
    pub fn current(&mut self, env: &Env, meta: ArrayArg) -> Result<Option<NativeBuffer>> {
        self.cache.change(env, |cache| self.views.show_optional(cache.current_shown()?.as_ref(), meta.numbers()?))
    }

    #[napi]
    pub fn accept_path(&mut self, env: &Env, path: &[u32]) -> Result<()> {
        self.cache.change(env, |cache| Ok(cache.accept_path(path)?))
    }

    #[napi]
    pub fn tree_mask(&self, env: &Env, parents: &[i32]) -> Result<NativeView> {
        self.cache.read(env, |cache| {
            let columns = cache.committed_len() as usize + parents.len();
            // The mask grows with the square of the draft. The budget refuses it before any of it is allocated.
            let lease = budget().take((parents.len() as u64).saturating_mul(columns as u64).saturating_mul(4))?;
            let mask = cache.tree_mask(parents)?;
            drop(lease);
            let host = HostTensor::new("parents", bytemuck::cast_slice(&mask), DType::F32, &[parents.len(), columns])?;
            Ok(NativeView::of(View::from_host(&host, &budget())?, &Children::default()))
        })
    }

    #[napi]
    pub fn tree_positions(&self, env: &Env, parents: &[i32]) -> Result<Vec<i32>> {
        self.cache.read(env, |cache| {
            let positions = cache.tree_positions(parents)?;
            Ok(positions.into_iter().map(|position| position as i32).collect())
        })
    }

    #[napi]
    pub fn stats(&self, env: &Env) -> Result<NativeStats> {
        self.cache.read(env, |cache| Ok(cache.stats().into()))
    }

    /// True if JavaScript keeps a buffer that the cache no longer has. JavaScript then drops it.
    #[napi(catch_unwind)]
    pub fn let_go(&mut self) -> bool {
        self.cache.get().is_ok_and(|cache| self.views.let_go(cache.buffer_id()))
    }

    #[napi]
    pub fn dispose(&mut self, env: &Env) {
        self.views.children.release();
        self.cache.dispose(env, RollbackCache::close);
    }
}

#[napi]
impl NativeRollbackMark {
    #[napi]
    pub fn committed_len(&self, env: &Env) -> Result<f64> {
        self.mark.read(env, |mark| Ok(mark.committed_len().into()))
    }

    #[napi]
    pub fn dispose(&mut self, env: &Env) {
        self.mark.dispose(env, |_| ());
    }
}
