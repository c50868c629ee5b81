//! The contiguous cache that grows as tokens are appended.

use kvtide_tensor::runtime::device;
use kvtide_tensor::{KvCache, KvCacheOptions, KvSnapshot};
use napi::{Env, Result};
use napi_derive::napi;

use crate::border::argument::{ArrayArg, count, optional, positive, whole};
use crate::border::handle::{Handle, budget, guard};
use crate::border::process::NativeStats;
use crate::border::tensor::{CacheViews, NativeBuffer, TensorArg, source};

/// All options of the cache; the TypeScript layer has filled in the defaults.
#[napi(object)]
pub struct NativeKvCacheOptions {
    pub batch_size: f64,
    pub num_kv_heads: f64,
    pub initial_capacity: f64,
    pub max_seq_len: f64,
    pub head_dim: f64,
    pub dtype: String,
    pub device: String,
    pub stable_addresses: bool,
    #[napi(ts_type = "number | undefined")]
    pub memory_limit_bytes: Option<f64>,
}

#[napi]
pub struct NativeKvCache {
    pub(crate) cache: Handle<KvCache>,
    pub(crate) views: CacheViews,
}

#[napi]
pub struct NativeKvSnapshot {
    snapshot: Handle<KvSnapshot>,
}

#[napi]
impl NativeKvCache {
    #[napi(constructor)]
    pub fn new(env: &Env, options: NativeKvCacheOptions) -> Result<Self> {
        guard(env, || {
            let cache = KvCache::new(KvCacheOptions {
                batch_size: positive("batchSize", options.batch_size)?,
                num_kv_heads: positive("numKvHeads", options.num_kv_heads)?,
                initial_capacity: count("initialCapacity", options.initial_capacity)?,
                max_seq_len: positive("maxSeqLen", options.max_seq_len)?,
                head_dim: positive("headDim", options.head_dim)?,
                dtype: options.dtype.parse()?,
                device: device(&options.device)?,
                stable_addresses: options.stable_addresses,
                memory_limit_bytes: optional("memoryLimitBytes", options.memory_limit_bytes, whole)?,
                budget: Some(budget()),
            })?;
            Ok(NativeKvCache { cache: Handle::new("KvCache", cache), views: CacheViews::default() })
        })
    }

    #[napi]
    pub fn seq_len(&self, env: &Env) -> Result<f64> {
        self.cache.read(env, |cache| Ok(cache.seq_len().into()))
    }

    #[napi]
    pub fn capacity(&self, env: &Env) -> Result<f64> {
        self.cache.read(env, |cache| Ok(cache.capacity().into()))
    }

    #[napi]
    pub fn update(&mut self, env: &Env, k: TensorArg, v: TensorArg, meta: ArrayArg) -> Result<Option<NativeBuffer>> {
        self.cache.change(env, |cache| {
            let meta = meta.numbers()?;
            let shown = cache.update_shown(source("k", &k, meta, 0)?, source("v", &v, meta, 1)?)?;
            self.views.show(&shown, meta)
        })
    }

    #[napi]
    pub fn get_kv(&mut self, env: &Env, meta: ArrayArg) -> Result<Option<NativeBuffer>> {
        self.cache.change(env, |cache| self.views.show(&cache.get_kv_shown()?, meta.numbers()?))
    }

    #[napi]
    pub fn raw(&mut self, env: &Env, meta: ArrayArg) -> Result<Option<NativeBuffer>> {
        self.cache.change(env, |cache| self.views.show(&cache.raw_shown()?, meta.numbers()?))
    }

    #[napi]
    pub fn increment_seq_len(&mut self, env: &Env, tokens: f64) -> Result<()> {
        self.cache.change(env, |cache| Ok(cache.increment_seq_len(count("n", tokens)?)?))
    }

    #[napi]
    pub fn truncate(&mut self, env: &Env, len: f64) -> Result<()> {
        self.cache.change(env, |cache| Ok(cache.truncate(whole("len", len)?)?))
    }

    #[napi]
    pub fn reset(&mut self, env: &Env) -> Result<()> {
        self.cache.change(env, |cache| Ok(cache.reset()?))
    }

    #[napi]
    pub fn snapshot(&self, env: &Env) -> Result<NativeKvSnapshot> {
        let snapshot = self.cache.read(env, |cache| Ok(cache.snapshot()?))?;
        Ok(NativeKvSnapshot { snapshot: Handle::new("Snapshot", snapshot) })
    }

    #[napi]
    pub fn restore(&mut self, env: &Env, snapshot: &NativeKvSnapshot) -> Result<()> {
        self.cache.change(env, |cache| Ok(cache.restore(snapshot.snapshot.get()?)?))
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
        self.cache.dispose(env, KvCache::close);
    }
}

#[napi]
impl NativeKvSnapshot {
    #[napi]
    pub fn length(&self, env: &Env) -> Result<f64> {
        self.snapshot.read(env, |snapshot| Ok(snapshot.seq_len().into()))
    }

    #[napi]
    pub fn dispose(&mut self, env: &Env) {
        self.snapshot.dispose(env, |_| ());
    }
}
