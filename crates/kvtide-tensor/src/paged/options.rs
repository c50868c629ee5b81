//! Options of a paged cache whose layers all have the same sizes. Every field has a default.

use std::sync::Arc;

use candle_core::Device;
use kvtide_core::paged::{EvictionPolicy, PageFormat, Window};

use crate::base::dtype::DType;
use crate::base::memory::Budget;

/// Options of a [`PagedKvCache`](crate::PagedKvCache).
#[derive(Clone, Debug)]
pub struct PagedKvCacheOptions {
    /// The number of blocks in the pool.
    pub capacity: u32,
    /// The number of tokens in a block.
    pub block_size: u32,
    /// The number of layers of the model.
    pub num_layers: u32,
    /// The number of KV heads.
    pub num_kv_heads: u32,
    /// The number of elements in one head of K.
    pub head_dim: u32,
    /// The number of elements in one head of V, 0 if there is no V; by default as in K.
    pub value_head_dim: Option<u32>,
    /// The element type of inputs, and of outputs from pages that are not low-bit.
    pub dtype: DType,
    /// The format of K in pages: `dtype` (the default) or low-bit.
    pub key_format: Option<PageFormat>,
    /// The format of V in pages: `dtype` (the default) or low-bit.
    pub value_format: Option<PageFormat>,
    /// Rotates K by a Hadamard matrix before it is quantised, which spreads outlier channels.
    pub hadamard: bool,
    /// Rotates V by a Hadamard matrix before it is quantised, which spreads outliers over the row whose scale they determine.
    pub value_hadamard: bool,
    /// The window of its layers: blocks outside it are freed. By default, every token is visible to all later ones.
    pub window: Option<Window>,
    /// True if a block is the slot of a sequence's states instead of keys and values of tokens.
    pub states: bool,
    /// The meaning of token ids: the model, its rope settings. It is part of block keys, together with the form of the
    /// pages; see [`PrefixNamer`](crate::PrefixNamer).
    pub namespace: String,
    /// The secret under which block keys are made; by default a random one per process. Stores that outlive the process need
    /// a stable one.
    pub prefix_key: Option<[u8; 32]>,
    /// The order in which free cached blocks are evicted; by default by priority, then the least recently used first.
    pub eviction: Option<Arc<dyn EvictionPolicy>>,
    /// The number of cache events to keep for followers of the prefix cache; 0 for none.
    pub events: u32,
    /// The device; see [`crate::runtime::device()`].
    pub device: Device,
    /// The most bytes that it may use, including staging pages.
    pub memory_limit_bytes: Option<u64>,
    /// The budget that the cache's memory is taken from; the process's by default.
    pub budget: Option<Arc<Budget>>,
}

impl Default for PagedKvCacheOptions {
    fn default() -> Self {
        PagedKvCacheOptions {
            capacity: 0,
            block_size: 16,
            num_layers: 1,
            num_kv_heads: 1,
            head_dim: 1,
            value_head_dim: None,
            dtype: DType::F32,
            key_format: None,
            value_format: None,
            hadamard: false,
            value_hadamard: false,
            window: None,
            states: false,
            namespace: String::new(),
            prefix_key: None,
            eviction: None,
            events: 0,
            device: Device::Cpu,
            memory_limit_bytes: None,
            budget: None,
        }
    }
}
