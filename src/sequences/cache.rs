//! The paged cache: creation, writes and reads. Sequences, prefixes, drafts, steps and the pool have their own files.

use kvtide_core::model::{LayerGroup, LayerKind};
use kvtide_tensor::PagedKvCache;
use napi::{Env, Result};
use napi_derive::napi;

use super::model::NativeGroup;
use super::options::{NativeModelOptions, NativePagedOptions};
use crate::border::argument::{ArrayArg, ArrayMemory, apart, count, whole};
use crate::border::handle::{Handle, guard};
use crate::border::refusal::Outcome;
use crate::border::tensor::{Children, NativeView, TensorArg, source};

#[napi]
pub struct NativePagedKvCache {
    pub(crate) cache: Handle<PagedKvCache>,
}

#[napi]
impl NativePagedKvCache {
    #[napi(constructor)]
    pub fn new(env: &Env, options: NativePagedOptions) -> Result<Self> {
        guard(env, || {
            let cache = PagedKvCache::new(options.read()?)?;
            Ok(NativePagedKvCache { cache: Handle::new("PagedKvCache", cache) })
        })
    }

    #[napi(factory)]
    pub fn of_model(env: &Env, options: NativeModelOptions) -> Result<Self> {
        guard(env, || {
            let cache = PagedKvCache::of_model(options.read()?)?;
            Ok(NativePagedKvCache { cache: Handle::new("PagedKvCache", cache) })
        })
    }

    #[napi]
    pub fn num_layers(&self, env: &Env) -> Result<f64> {
        self.cache.read(env, |cache| Ok(cache.model().layers().len() as f64))
    }

    #[napi]
    pub fn groups(&self, env: &Env) -> Result<Vec<NativeGroup>> {
        self.cache.read(env, |cache| Ok(NativeGroup::of(cache.model())))
    }

    /// The group of each layer's keys and values; 2^32 - 1 for a layer that has none.
    #[napi]
    pub fn group_of_layers(&self, env: &Env) -> Result<Vec<u32>> {
        self.cache.read(env, |cache| {
            let layers = cache.model().layers().len() as u32;
            Ok((0..layers).map(|layer| cache.model().place(layer).map_or(u32::MAX, |place| place.group)).collect())
        })
    }

    /// Fails for a layer without keys and values.
    #[napi]
    pub fn check_layer(&self, env: &Env, layer: f64) -> Result<()> {
        self.cache.read(env, |cache| Ok(cache.place(count("layer", layer)?).map(drop)?))
    }

    /// The number of groups with keys and values, which come before those with states.
    #[napi]
    pub fn table_groups(&self, env: &Env) -> Result<f64> {
        self.cache.read(env, |cache| {
            let has_kv = |group: &&LayerGroup| group.kind != LayerKind::State;
            Ok(cache.model().groups().iter().filter(has_kv).count() as f64)
        })
    }

    /// The bytes of a sequence's states; 0 if no layer keeps one.
    #[napi]
    pub fn state_bytes(&self, env: &Env) -> Result<f64> {
        self.cache.read(env, |cache| Ok(cache.state_bytes() as f64))
    }

    /// Copies the states of a sequence into an array.
    #[napi]
    pub fn states_of(&mut self, env: &Env, sequence: f64, out: ArrayArg) -> Result<()> {
        self.cache
            .change(env, |cache| Ok(cache.states_of_into(whole("seq", sequence)?, out.memory("out")?.bytes_mut())?))
    }

    /// Keeps the states after each token of a draft's step from now on, so that a part of it can be committed.
    #[napi]
    pub fn keep_drafted_states(&mut self, env: &Env) -> Result<()> {
        self.cache.change(env, |cache| {
            cache.keep_drafted_states(true);
            Ok(())
        })
    }

    /// True if each query head has a learned sink logit, which must be passed to attention.
    #[napi]
    pub fn has_sink_logits(&self, env: &Env) -> Result<bool> {
        self.cache.read(env, |cache| Ok(cache.model().attention().sink_logits))
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
        &mut self,
        env: &Env,
        sequence: f64,
        layer: f64,
        position: f64,
        key: ArrayArg,
        value: ArrayArg,
    ) -> Result<()> {
        self.cache.change(env, |cache| {
            let (sequence, layer, position) =
                (whole("seq", sequence)?, count("layer", layer)?, count("pos", position)?);
            let [key, value] = pair([("key", key), ("value", value)])?;
            Ok(cache.read_kv_into(sequence, layer, position, key.bytes_mut(), value.bytes_mut())?)
        })
    }

    #[napi]
    pub fn write_tokens(
        &mut self,
        env: &Env,
        sequence: f64,
        layer: f64,
        position: f64,
        k: TensorArg,
        v: TensorArg,
        meta: &[f64],
    ) -> Result<()> {
        self.cache.change(env, |cache| {
            let (sequence, layer, position) =
                (whole("seq", sequence)?, count("layer", layer)?, count("pos", position)?);
            Ok(cache.write_tokens(sequence, layer, position, source("k", &k, meta, 0)?, source("v", &v, meta, 1)?)?)
        })
    }

    /// Copies K and V of all tokens of a layer.
    #[napi]
    pub fn gather(&mut self, env: &Env, sequence: f64, layer: f64) -> Result<Vec<NativeView>> {
        self.cache.change(env, |cache| {
            let gathered = cache.gather(whole("seq", sequence)?, count("layer", layer)?)?;
            Ok([gathered.k, gathered.v].map(|view| NativeView::of(view, &Children::default())).into())
        })
    }

    #[napi]
    pub fn gather_into(&mut self, env: &Env, sequence: f64, layer: f64, k: ArrayArg, v: ArrayArg) -> Result<()> {
        self.cache.change(env, |cache| {
            let (sequence, layer) = (whole("seq", sequence)?, count("layer", layer)?);
            let [k, v] = pair([("k", k), ("v", v)])?;
            Ok(cache.gather_into(sequence, layer, k.bytes_mut(), v.bytes_mut())?)
        })
    }

    /// Like `gather`, with a batch dimension of one in front.
    #[napi]
    pub fn kv(&mut self, env: &Env, sequence: f64, layer: f64) -> Result<Vec<NativeView>> {
        self.cache.change(env, |cache| {
            let kv = cache.kv(whole("seq", sequence)?, count("layer", layer)?)?;
            Ok([kv.k, kv.v].map(|view| NativeView::of(view, &Children::default())).into())
        })
    }

    /// Copies K and V of all layers that have their own, into arrays in this order.
    #[napi]
    pub fn read_into(&mut self, env: &Env, sequence: f64, arrays: Vec<ArrayArg>) -> Result<()> {
        self.cache.change(env, |cache| {
            let named = arrays.iter().zip(["k", "v"].into_iter().cycle()).map(|(&array, name)| (name, array));
            let memory = apart(&named.collect::<Vec<_>>())?;
            let mut layers: Vec<[&mut [u8]; 2]> =
                memory.as_chunks().0.iter().map(|[k, v]: &[ArrayMemory; 2]| [k.bytes_mut(), v.bytes_mut()]).collect();
            Ok(cache.read_into(whole("seq", sequence)?, &mut layers)?)
        })
    }

    #[napi]
    pub fn bytes_per_token(&self, env: &Env) -> Result<f64> {
        self.cache.read(env, |cache| Ok(cache.bytes_per_token()))
    }

    #[napi]
    pub fn dispose(&mut self, env: &Env) {
        self.cache.dispose(env, |_| ());
    }
}

/// The memory of two arrays. Returns an error if they overlap.
fn pair(named: [(&'static str, ArrayArg); 2]) -> Outcome<[ArrayMemory; 2]> {
    let memory = apart(&named)?;
    Ok([memory[0], memory[1]])
}
