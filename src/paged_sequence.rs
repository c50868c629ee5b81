//! Sequences of a paged cache by their numbers, and snapshots of them.

use kvtide_tensor::PagedSnapshot;
use napi::{Env, Result};
use napi_derive::napi;

use crate::guard::Handle;
use crate::number::{count, whole};
use crate::paged_kv_cache::NativePagedKvCache;
use crate::source::{TensorArg, source};

/// A snapshot.
#[napi]
pub struct NativePagedSnapshot {
    snapshot: Handle<PagedSnapshot>,
}

#[napi]
impl NativePagedSnapshot {
    #[napi]
    pub fn length(&self, env: &Env) -> Result<f64> {
        self.snapshot.read(env, |snapshot| Ok(snapshot.length().into()))
    }

    #[napi]
    pub fn dispose(&mut self, env: &Env) {
        self.snapshot.dispose(env, |_| ());
    }
}

#[napi]
impl NativePagedKvCache {
    #[napi]
    pub fn drop_sequence(&mut self, env: &Env, sequence: f64) -> Result<()> {
        self.cache.change(env, |cache| Ok(cache.drop_sequence(whole("seq", sequence)?)?))
    }

    /// Ends a sequence if it is there, at once or at the next change; nothing when the cache has ended.
    #[napi]
    pub fn release_sequence(&mut self, env: &Env, sequence: f64) -> Result<()> {
        if self.cache.get().is_err() {
            return Ok(());
        }
        self.cache.change(env, |cache| {
            cache.release_sequence(whole("seq", sequence)?);
            Ok(())
        })
    }

    /// Refuses a sequence that is not there.
    #[napi]
    pub fn check_sequence(&mut self, env: &Env, sequence: f64) -> Result<()> {
        self.cache.change(env, |cache| {
            cache.sequence(whole("seq", sequence)?)?;
            Ok(())
        })
    }

    #[napi]
    pub fn sequence_length(&self, env: &Env, sequence: f64) -> Result<f64> {
        self.cache.read(env, |cache| Ok(cache.sequence_length(whole("seq", sequence)?).into()))
    }

    #[napi]
    pub fn committed_length(&self, env: &Env, sequence: f64) -> Result<f64> {
        self.cache.read(env, |cache| Ok(cache.committed_length(whole("seq", sequence)?).into()))
    }

    #[napi]
    pub fn retained_length(&mut self, env: &Env, sequence: f64) -> Result<f64> {
        self.cache.change(env, |cache| Ok(cache.retained_length(whole("seq", sequence)?).into()))
    }

    #[napi]
    pub fn sequence_capacity(&mut self, env: &Env, sequence: f64) -> Result<f64> {
        self.cache.change(env, |cache| Ok(cache.sequence_capacity(whole("seq", sequence)?) as f64))
    }

    #[napi]
    pub fn sequence_ids(&self, env: &Env) -> Result<Vec<f64>> {
        self.cache.read(env, |cache| Ok(cache.sequence_ids().into_iter().map(|id| id as f64).collect()))
    }

    /// Appends tokens of all layers to one sequence; `tokens` are their ids.
    #[napi]
    pub fn append_to(
        &mut self,
        env: &Env,
        sequence: f64,
        k: TensorArg,
        v: TensorArg,
        meta: &[f64],
        tokens: Option<&[u32]>,
    ) -> Result<()> {
        self.cache.change(env, |cache| {
            let (k, v) = (source("k", &k, meta, 0)?, source("v", &v, meta, 1)?);
            Ok(cache.sequence(whole("seq", sequence)?)?.append(k, v, tokens)?)
        })
    }

    #[napi]
    pub fn truncate(&mut self, env: &Env, sequence: f64, len: f64) -> Result<()> {
        self.cache.change(env, |cache| Ok(cache.truncate(whole("seq", sequence)?, count("len", len)?)?))
    }

    #[napi]
    pub fn fork(&mut self, env: &Env, sequence: f64) -> Result<f64> {
        self.cache.change(env, |cache| Ok(cache.fork(whole("seq", sequence)?)? as f64))
    }

    #[napi]
    pub fn snapshot(&mut self, env: &Env, sequence: f64) -> Result<NativePagedSnapshot> {
        let snapshot = self.cache.change(env, |cache| Ok(cache.snapshot(whole("seq", sequence)?)?))?;
        Ok(NativePagedSnapshot { snapshot: Handle::new("PagedSnapshot", snapshot) })
    }

    #[napi]
    pub fn restore(&mut self, env: &Env, sequence: f64, snapshot: &NativePagedSnapshot) -> Result<()> {
        self.cache.change(env, |cache| Ok(cache.restore(whole("seq", sequence)?, snapshot.snapshot.get()?)?))
    }
}
