//! What a paged cache is made with; the TypeScript layer has filled in what was left out.

use std::sync::Arc;

use kvtide_core::paged::{EvictionPolicy, PageFormat, RankTable, Window};
use kvtide_core::{Error, count_positive, counted};
use kvtide_tensor::{PagedKvCacheOptions, device};
use napi::bindgen_prelude::Uint8Array;
use napi_derive::napi;

use crate::border::budget::budget;
use crate::border::number::{count, optional, whole};
use crate::border::refusal::Outcome;

/// Everything that the cache is made with.
#[napi(object, object_to_js = false)]
pub struct NativePagedOptions {
    pub capacity: f64,
    pub block_size: f64,
    pub num_layers: f64,
    pub num_kv_heads: f64,
    pub head_dim: f64,
    pub value_head_dim: f64,
    pub dtype: String,
    pub key_format: String,
    pub value_format: String,
    pub hadamard: bool,
    #[napi(ts_type = "number | undefined")]
    pub window: Option<f64>,
    pub sinks: f64,
    pub namespace: String,
    #[napi(ts_type = "Uint8Array | undefined")]
    pub prefix_key: Option<Uint8Array>,
    #[napi(ts_type = "Uint8Array | undefined")]
    pub eviction: Option<Uint8Array>,
    pub events: f64,
    pub device: String,
    #[napi(ts_type = "number | undefined")]
    pub memory_limit_bytes: Option<f64>,
}

impl NativePagedOptions {
    /// The options, each checked.
    pub(crate) fn read(self) -> Outcome<PagedKvCacheOptions> {
        let positive = |argument, value| {
            Ok::<_, crate::border::refusal::Refusal>(count_positive(argument, whole(argument, value)?)?)
        };
        let sinks = count("sinks", self.sinks)?;
        let window = optional("window", self.window, count)?;
        Ok(PagedKvCacheOptions {
            capacity: count("capacity", self.capacity)?,
            block_size: positive("blockSize", self.block_size)?,
            num_layers: positive("numLayers", self.num_layers)?,
            num_kv_heads: positive("numKvHeads", self.num_kv_heads)?,
            head_dim: positive("headDim", self.head_dim)?,
            value_head_dim: Some(count("valueHeadDim", self.value_head_dim)?),
            dtype: self.dtype.parse()?,
            key_format: Some(page_format("keyFormat", &self.key_format)?),
            value_format: Some(page_format("valueFormat", &self.value_format)?),
            hadamard: self.hadamard,
            window: window.map(|tokens| Window::new(tokens, sinks)).transpose()?,
            namespace: self.namespace,
            prefix_key: self.prefix_key.map(|key| prefix_key(&key)).transpose()?,
            eviction: self.eviction.map(|ranks| eviction(&ranks)).transpose()?,
            events: count("events", self.events)?,
            device: device(&self.device)?,
            memory_limit_bytes: optional("memoryLimitBytes", self.memory_limit_bytes, whole)?,
            budget: Some(budget()),
        })
    }
}

pub(crate) fn prefix_key(key: &[u8]) -> Outcome<[u8; 32]> {
    key.try_into().map_err(|_| Error::argument("prefixKey", counted(key.len() as u64, "byte"), "32 bytes").into())
}

/// The order of eviction: the rank of every priority and depth.
pub(crate) fn eviction(ranks: &[u8]) -> Outcome<Arc<dyn EvictionPolicy>> {
    Ok(Arc::new(RankTable::new(ranks)?))
}

pub(crate) fn page_format(argument: &'static str, name: &str) -> Outcome<PageFormat> {
    name.parse().map_err(|names| Error::argument(argument, name, format!("one of {names}")).into())
}
