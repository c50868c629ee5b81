//! Caches of one layer in files: read and verified on a thread of Node's pool, created on the JavaScript thread.

use std::sync::Arc;

use kvtide_files::{Place, Save, TensorFile};
use napi::bindgen_prelude::AsyncTask;
use napi::{Env, Result};
use napi_derive::napi;

use super::load::NativeSource;
use super::save::NativeSave;
use super::watch::NativeWatch;
use crate::border::argument::{optional, whole};
use crate::border::handle::{Handle, budget, guard};
use crate::border::refusal::Outcome;
use crate::border::task::PoolTask;
use crate::border::tensor::CacheViews;
use crate::contiguous::kv_cache::NativeKvCache;
use crate::contiguous::rollback_cache::NativeRollbackCache;
use crate::contiguous::rotating_cache::{EitherCache, NativeRotatingCache, handle};

/// The file of a cache of one layer, read as a whole.
#[napi]
pub struct NativeTensorFile {
    file: Arc<TensorFile>,
}

#[napi]
impl NativeTensorFile {
    /// Returns the options and state of the cache, as JSON.
    #[napi(catch_unwind)]
    pub fn description(&self) -> String {
        self.file.description().to_owned()
    }
}

#[napi]
impl NativeSource {
    /// Reads the file of a cache of a kind: `kv`, `rotating`, `rotating-kv` or `rollback`.
    #[napi(catch_unwind, ts_return_type = "Promise<NativeTensorFile>")]
    pub fn read_tensors(&self, kind: String, watch: &NativeWatch) -> AsyncTask<PoolTask<TensorFile, NativeTensorFile>> {
        let (source, watch) = (self.origin(), watch.shared());
        let read = move || {
            let source = source.open()?;
            Ok(match &*kind {
                "rotating" => TensorFile::rotating(source, 1, &watch)?,
                "rotating-kv" => TensorFile::rotating(source, 2, &watch)?,
                "rollback" => TensorFile::rollback_cache(source, &watch)?,
                _ => TensorFile::kv_cache(source, &watch)?,
            })
        };
        PoolTask::of(read, |file| NativeTensorFile { file: file.into() })
    }
}

fn place(device: String, memory_limit_bytes: Option<f64>) -> Outcome<Place> {
    let memory_limit_bytes = optional("memoryLimitBytes", memory_limit_bytes, whole)?;
    Ok(Place { device, memory_limit_bytes, budget: Some(budget()) })
}

#[napi]
impl NativeKvCache {
    #[napi(factory)]
    pub fn loaded(env: &Env, file: &NativeTensorFile, device: String, memory_limit_bytes: Option<f64>) -> Result<Self> {
        guard(env, || {
            let cache = file.file.to_kv_cache(place(device, memory_limit_bytes)?)?;
            Ok(NativeKvCache { cache: Handle::new("KvCache", cache), views: CacheViews::default() })
        })
    }

    #[napi]
    pub fn begin_save(&self, env: &Env) -> Result<NativeSave> {
        self.cache.read(env, |cache| Ok(NativeSave::new(Save::kv_cache(cache)?)))
    }
}

#[napi]
impl NativeRotatingCache {
    /// Creates a cache of `parts` tensors.
    #[napi(factory)]
    pub fn loaded(
        env: &Env,
        parts: f64,
        file: &NativeTensorFile,
        device: String,
        memory_limit_bytes: Option<f64>,
    ) -> Result<Self> {
        guard(env, || {
            let place = place(device, memory_limit_bytes)?;
            Ok(handle(match parts == 2.0 {
                true => EitherCache::Pair(file.file.to_rotating(place)?),
                false => EitherCache::Single(file.file.to_rotating(place)?),
            }))
        })
    }

    #[napi]
    pub fn begin_save(&self, env: &Env) -> Result<NativeSave> {
        let save = |cache: &EitherCache| match cache {
            EitherCache::Single(cache) => Save::rotating(cache),
            EitherCache::Pair(cache) => Save::rotating(cache),
        };
        self.cache.read(env, |cache| Ok(NativeSave::new(save(cache)?)))
    }
}

#[napi]
impl NativeRollbackCache {
    #[napi(factory)]
    pub fn loaded(env: &Env, file: &NativeTensorFile, device: String, memory_limit_bytes: Option<f64>) -> Result<Self> {
        guard(env, || {
            let cache = file.file.to_rollback_cache(place(device, memory_limit_bytes)?)?;
            Ok(NativeRollbackCache { cache: Handle::new("RollbackCache", cache), views: CacheViews::default() })
        })
    }

    #[napi]
    pub fn begin_save(&self, env: &Env) -> Result<NativeSave> {
        self.cache.read(env, |cache| Ok(NativeSave::new(Save::rollback_cache(cache)?)))
    }
}
