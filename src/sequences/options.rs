//! Options of a cache: for uniform layers, or for a model. The TypeScript layer has filled in the defaults.

use std::sync::Arc;

use kvtide_core::paged::{EvictionPolicy, PageFormat, RankTable, Window};
use kvtide_core::{Error, counted};
use kvtide_tensor::runtime::device;
use kvtide_tensor::{PagedKvCacheOptions, PagedModelOptions, PoolRoom};
use napi::bindgen_prelude::{Uint8Array, Uint32Array};
use napi_derive::napi;

use super::model::NativeModel;
use crate::border::argument::{count, optional, positive, whole};
use crate::border::handle::budget;
use crate::border::refusal::Outcome;

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
    pub value_hadamard: bool,
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
    pub(crate) fn read(self) -> Outcome<PagedKvCacheOptions> {
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
            value_hadamard: self.value_hadamard,
            window: window.map(|tokens| Window::new(tokens, sinks)).transpose()?,
            states: false,
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

pub(crate) fn eviction(ranks: &[u8]) -> Outcome<Arc<dyn EvictionPolicy>> {
    Ok(Arc::new(RankTable::new(ranks)?))
}

pub(crate) fn page_format(argument: &'static str, name: &str) -> Outcome<PageFormat> {
    name.parse().map_err(|names| Error::argument(argument, name, format!("one of {names}")).into())
}

#[napi(object, object_to_js = false)]
pub struct NativeModelOptions {
    pub model: NativeModel,
    pub dtype: String,
    pub devices: Vec<String>,
    /// The device of each layer, as an index into `devices`; missing if all layers use one device.
    #[napi(ts_type = "Uint32Array | undefined")]
    pub device_of_layers: Option<Uint32Array>,
    pub block_size: f64,
    #[napi(ts_type = "number[] | undefined")]
    pub blocks: Option<Vec<f64>>,
    /// The number of blocks of every group.
    #[napi(ts_type = "number | undefined")]
    pub blocks_each: Option<f64>,
    pub memory_bytes: f64,
    pub max_sequences: f64,
    #[napi(ts_type = "number | undefined")]
    pub max_prefill_tokens: Option<f64>,
    pub key_format: String,
    pub value_format: String,
    pub hadamard: bool,
    pub value_hadamard: bool,
    pub namespace: String,
    #[napi(ts_type = "Uint8Array | undefined")]
    pub prefix_key: Option<Uint8Array>,
    #[napi(ts_type = "Uint8Array | undefined")]
    pub eviction: Option<Uint8Array>,
    pub events: f64,
    #[napi(ts_type = "number | undefined")]
    pub memory_limit_bytes: Option<f64>,
}

impl NativeModelOptions {
    pub(crate) fn read(self) -> Outcome<PagedModelOptions> {
        let dtype = self.dtype.parse()?;
        let model = match self.device_of_layers {
            Some(devices) => self.model.read(dtype)?.split(&devices)?,
            None => self.model.read(dtype)?,
        };
        let room = match (self.blocks, self.blocks_each) {
            (Some(blocks), _) => {
                PoolRoom::Blocks(blocks.into_iter().map(|of| count("capacity", of)).collect::<Outcome<_>>()?)
            }
            (None, Some(each)) => PoolRoom::Blocks(vec![count("capacity", each)?; model.groups().len()]),
            (None, None) => PoolRoom::Memory {
                bytes: whole("memoryBytes", self.memory_bytes)?,
                max_sequences: count("maxSequences", self.max_sequences)?,
                max_prefill_tokens: optional("maxPrefillTokens", self.max_prefill_tokens, count)?
                    .unwrap_or(PoolRoom::PREFILL_TOKENS),
            },
        };
        Ok(PagedModelOptions {
            block_size: positive("blockSize", self.block_size)?,
            dtype,
            key_format: Some(page_format("keyFormat", &self.key_format)?),
            value_format: Some(page_format("valueFormat", &self.value_format)?),
            hadamard: self.hadamard,
            value_hadamard: self.value_hadamard,
            namespace: self.namespace,
            prefix_key: self.prefix_key.map(|key| prefix_key(&key)).transpose()?,
            eviction: self.eviction.map(|ranks| eviction(&ranks)).transpose()?,
            events: count("events", self.events)?,
            devices: self.devices.iter().map(|name| device(name)).collect::<kvtide_tensor::Result<_>>()?,
            memory_limit_bytes: optional("memoryLimitBytes", self.memory_limit_bytes, whole)?,
            budget: Some(budget()),
            ..PagedModelOptions::new(model, room)
        })
    }
}
