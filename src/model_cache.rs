//! A model's cache: its layers, its sequences, what they hold and what that costs. Prompts, transactions and steps have files of
//! their own.

use kvtide_tensor::{ModelCache, ModelSnapshot};
use napi::{Env, Result};
use napi_derive::napi;

use crate::guard::{Handle, guard};
use crate::model_options::{NativeGroup, NativeModelOptions};
use crate::number::{count, whole};
use crate::paged_pool::NativePool;
use crate::shown::Children;
use crate::stats::NativeStats;
use crate::tensor::NativeView;

/// A cache.
#[napi]
pub struct NativeModelCache {
    pub(crate) cache: Handle<ModelCache>,
    /// Views of what it holds.
    children: Children,
}

/// A snapshot.
#[napi]
pub struct NativeModelSnapshot {
    snapshot: Handle<ModelSnapshot>,
}

/// What it costs, and what the pools of its groups hold.
#[napi(object, object_from_js = false)]
pub struct NativeModelStats {
    pub costs: NativeStats,
    pub pools: Vec<NativePool>,
}

#[napi]
impl NativeModelSnapshot {
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
impl NativeModelCache {
    #[napi(constructor)]
    pub fn new(env: &Env, options: NativeModelOptions) -> Result<Self> {
        guard(env, || {
            let cache = Handle::new("ModelCache", ModelCache::new(options.read()?)?);
            Ok(NativeModelCache { cache, children: Children::default() })
        })
    }

    #[napi]
    pub fn num_layers(&self, env: &Env) -> Result<f64> {
        self.cache.read(env, |cache| Ok(cache.model().layers().len() as f64))
    }

    #[napi]
    pub fn groups(&self, env: &Env) -> Result<Vec<NativeGroup>> {
        self.cache.read(env, |cache| Ok(cache.model().groups().iter().map(NativeGroup::from).collect()))
    }

    /// Whether each query head has a learned logit, which attention has to be given.
    #[napi]
    pub fn has_sink_logits(&self, env: &Env) -> Result<bool> {
        self.cache.read(env, |cache| Ok(cache.model().attention().sink_logits))
    }

    #[napi]
    pub fn drop_sequence(&mut self, env: &Env, sequence: f64) -> Result<()> {
        self.cache.change(env, |cache| Ok(cache.drop_sequence(whole("sequence", sequence)?)?))
    }

    /// Ends a sequence if it is there, at once or at the next change; nothing when the cache has ended.
    #[napi]
    pub fn release_sequence(&mut self, env: &Env, sequence: f64) -> Result<()> {
        if self.cache.get().is_err() {
            return Ok(());
        }
        self.cache.change(env, |cache| {
            cache.release_sequence(whole("sequence", sequence)?);
            Ok(())
        })
    }

    /// Refuses a sequence that is not there.
    #[napi]
    pub fn check_sequence(&self, env: &Env, sequence: f64) -> Result<()> {
        self.cache.read(env, |cache| {
            let sequence = whole("sequence", sequence)?;
            let absent = kvtide_core::Error::SequenceNotFound { sequence };
            if cache.has_sequence(sequence) { Ok(()) } else { Err(absent.into()) }
        })
    }

    #[napi]
    pub fn sequence_length(&self, env: &Env, sequence: f64) -> Result<f64> {
        self.cache.read(env, |cache| Ok(cache.sequence_length(whole("sequence", sequence)?).into()))
    }

    #[napi]
    pub fn committed_length(&self, env: &Env, sequence: f64) -> Result<f64> {
        self.cache.read(env, |cache| Ok(cache.committed_length(whole("sequence", sequence)?).into()))
    }

    #[napi]
    pub fn sequence_ids(&self, env: &Env) -> Result<Vec<f64>> {
        self.cache.read(env, |cache| Ok(cache.sequence_ids().into_iter().map(|id| id as f64).collect()))
    }

    #[napi]
    pub fn truncate(&mut self, env: &Env, sequence: f64, len: f64) -> Result<()> {
        self.cache.change(env, |cache| Ok(cache.truncate(whole("sequence", sequence)?, count("len", len)?)?))
    }

    #[napi]
    pub fn fork(&mut self, env: &Env, sequence: f64) -> Result<f64> {
        self.cache.change(env, |cache| Ok(cache.fork(whole("sequence", sequence)?)? as f64))
    }

    #[napi]
    pub fn snapshot(&mut self, env: &Env, sequence: f64) -> Result<NativeModelSnapshot> {
        let snapshot = self.cache.change(env, |cache| Ok(cache.snapshot(whole("sequence", sequence)?)?))?;
        Ok(NativeModelSnapshot { snapshot: Handle::new("ModelSnapshot", snapshot) })
    }

    #[napi]
    pub fn restore(&mut self, env: &Env, sequence: f64, snapshot: &NativeModelSnapshot) -> Result<()> {
        self.cache.change(env, |cache| Ok(cache.restore(whole("sequence", sequence)?, snapshot.snapshot.get()?)?))
    }

    /// K and V of a layer; nothing where it holds nothing.
    #[napi]
    pub fn kv(&mut self, env: &Env, sequence: f64, layer: f64) -> Result<Option<Vec<NativeView>>> {
        self.cache.change(env, |cache| {
            let found = cache.kv(whole("sequence", sequence)?, count("layer", layer)?)?;
            Ok(found.map(|kv| [kv.k, kv.v].map(|view| NativeView::of(view, &self.children)).into()))
        })
    }

    #[napi]
    pub fn check_invariants(&self, env: &Env) -> Result<Option<String>> {
        self.cache.read(env, |cache| Ok(cache.check_invariants().err()))
    }

    #[napi]
    pub fn stats(&mut self, env: &Env) -> Result<NativeModelStats> {
        self.cache.change(env, |cache| {
            let pools = cache.pool_stats()?.into_iter().map(NativePool::from).collect();
            Ok(NativeModelStats { costs: cache.stats().into(), pools })
        })
    }

    #[napi]
    pub fn dispose(&mut self, env: &Env) {
        self.children.release();
        self.cache.dispose(env, |_| ());
    }
}
