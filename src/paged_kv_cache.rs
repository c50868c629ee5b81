//! The paged cache.

use kvtide_core::count_positive;
use kvtide_tensor::{PagedKvCache, PagedKvCacheOptions, device};
use napi::{Env, Result};
use napi_derive::napi;

use crate::bytes::ArrayArg;
use crate::guard::{Handle, guard};
use crate::memory::budget;
use crate::number::{count, optional, whole};
use crate::source::{TensorArg, source};
use crate::stats::NativeStats;

/// Everything that the cache is made with; the TypeScript layer has filled in what was left out.
#[napi(object)]
pub struct NativePagedOptions {
    pub capacity: f64,
    pub block_size: f64,
    pub num_layers: f64,
    pub num_kv_heads: f64,
    pub head_dim: f64,
    pub dtype: String,
    pub device: String,
    #[napi(ts_type = "number | undefined")]
    pub memory_limit_bytes: Option<f64>,
}

/// A cache.
#[napi]
pub struct NativePagedKvCache {
    cache: Handle<PagedKvCache>,
}

#[napi]
impl NativePagedKvCache {
    #[napi(constructor)]
    pub fn new(env: &Env, options: NativePagedOptions) -> Result<Self> {
        guard(env, || {
            let positive =
                |argument, value| Ok::<_, crate::raise::Refusal>(count_positive(argument, whole(argument, value)?)?);
            let cache = PagedKvCache::new(PagedKvCacheOptions {
                capacity: count("capacity", options.capacity)?,
                block_size: positive("blockSize", options.block_size)?,
                num_layers: positive("numLayers", options.num_layers)?,
                num_kv_heads: positive("numKvHeads", options.num_kv_heads)?,
                head_dim: positive("headDim", options.head_dim)?,
                dtype: options.dtype.parse()?,
                device: device(&options.device)?,
                memory_limit_bytes: optional("memoryLimitBytes", options.memory_limit_bytes, whole)?,
                budget: Some(budget()),
                ..Default::default()
            })?;
            Ok(NativePagedKvCache { cache: Handle::new("PagedKvCache", cache) })
        })
    }

    #[napi]
    pub fn create_sequence(&mut self, env: &Env) -> Result<f64> {
        self.cache.change(env, |cache| Ok(cache.create_sequence()? as f64))
    }

    #[napi]
    pub fn drop_sequence(&mut self, env: &Env, sequence: f64) -> Result<()> {
        self.cache.change(env, |cache| Ok(cache.drop_sequence(whole("seq", sequence)?)?))
    }

    #[napi]
    pub fn ensure_capacity(&mut self, env: &Env, sequence: f64, tokens: f64) -> Result<()> {
        self.cache.change(env, |cache| Ok(cache.ensure_capacity(whole("seq", sequence)?, count("tokens", tokens)?)?))
    }

    #[napi]
    pub fn write_kv(
        &mut self,
        env: &Env,
        sequence: f64,
        layer: f64,
        position: f64,
        key: TensorArg,
        value: TensorArg,
        meta: &[f64],
    ) -> Result<()> {
        self.cache.change(env, |cache| {
            let (sequence, layer, position) =
                (whole("seq", sequence)?, count("layer", layer)?, count("pos", position)?);
            Ok(cache.write_kv(
                sequence,
                layer,
                position,
                source("key", &key, meta, 0)?,
                source("value", &value, meta, 1)?,
            )?)
        })
    }

    #[napi]
    pub fn read_kv_into(
        &self,
        env: &Env,
        sequence: f64,
        layer: f64,
        position: f64,
        key: ArrayArg,
        value: ArrayArg,
    ) -> Result<()> {
        self.cache.read(env, |cache| {
            let (sequence, layer, position) =
                (whole("seq", sequence)?, count("layer", layer)?, count("pos", position)?);
            let (key, value) = (key.memory("key")?, value.memory("value")?);
            let (start, end) = (key.address().addr(), key.address().addr() + key.len());
            if value.len() > 0 && value.address().addr() < end && value.address().addr() + value.len() > start {
                let expected = "memory of its own, apart from key's";
                return Err(kvtide_core::Error::argument("value", "an array over key's memory", expected).into());
            }
            Ok(cache.read_kv_into(sequence, layer, position, key.bytes_mut(), value.bytes_mut())?)
        })
    }

    #[napi]
    pub fn pool_utilization(&self, env: &Env) -> Result<f64> {
        self.cache.read(env, |cache| Ok(cache.pool_utilization()))
    }

    #[napi]
    pub fn free_count(&self, env: &Env) -> Result<f64> {
        self.cache.read(env, |cache| Ok(cache.free_count().into()))
    }

    #[napi]
    pub fn total_count(&self, env: &Env) -> Result<f64> {
        self.cache.read(env, |cache| Ok(cache.total_count().into()))
    }

    #[napi]
    pub fn sequence_length(&self, env: &Env, sequence: f64) -> Result<f64> {
        self.cache.read(env, |cache| Ok(cache.sequence_length(whole("seq", sequence)?).into()))
    }

    #[napi]
    pub fn sequence_capacity(&self, env: &Env, sequence: f64) -> Result<f64> {
        self.cache.read(env, |cache| Ok(cache.sequence_capacity(whole("seq", sequence)?) as f64))
    }

    #[napi]
    pub fn sequence_ids(&self, env: &Env) -> Result<Vec<f64>> {
        self.cache.read(env, |cache| Ok(cache.sequence_ids().into_iter().map(|id| id as f64).collect()))
    }

    #[napi]
    pub fn check_invariants(&self, env: &Env) -> Result<Option<String>> {
        self.cache.read(env, |cache| Ok(cache.check_invariants().err()))
    }

    #[napi]
    pub fn stats(&self, env: &Env) -> Result<NativeStats> {
        self.cache.read(env, |cache| Ok(cache.stats().into()))
    }

    #[napi]
    pub fn dispose(&mut self, env: &Env) {
        self.cache.dispose(env, |_| ());
    }
}
