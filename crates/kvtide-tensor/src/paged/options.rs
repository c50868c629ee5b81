//! What a cache of pages is made with, where all its layers are alike. Every field has a default, so that callers name what they mean.

use std::sync::Arc;

use candle_core::Device;
use kvtide_core::paged::{EvictionPolicy, PageFormat, Window};

use crate::base::dtype::DType;
use crate::base::memory::Budget;

/// What a [`PagedKvCache`](crate::PagedKvCache) is made with.
#[derive(Clone, Debug)]
pub struct PagedKvCacheOptions {
    /// Blocks in the pool.
    pub capacity: u32,
    /// Tokens of a block.
    pub block_size: u32,
    /// Layers of the model.
    pub num_layers: u32,
    /// Heads of K and V.
    pub num_kv_heads: u32,
    /// Elements of one head of K.
    pub head_dim: u32,
    /// Elements of one head of V, 0 when there is no V; none: as in K.
    pub value_head_dim: Option<u32>,
    /// The element type of what goes in, and of what comes out of pages that are not low-bit.
    pub dtype: DType,
    /// How pages keep K: in `dtype`, or low-bit; none: in `dtype`.
    pub key_format: Option<PageFormat>,
    /// How pages keep V: in `dtype`, or low-bit; none: in `dtype`.
    pub value_format: Option<PageFormat>,
    /// Rotates K by a Hadamard matrix before it is quantised, which spreads channels that stand out.
    pub hadamard: bool,
    /// The window of its layers: blocks that left it are given back. None: every token is seen by all that follow.
    pub window: Option<Window>,
    /// What the tokens mean: the model, its rope settings. It is in the names of prompts, with the form of the pages; see
    /// [`PrefixNamer`](crate::PrefixNamer).
    pub namespace: String,
    /// Under which key prompts are found; none: a random one of this process. A stable one is for stores that outlive it.
    pub prefix_key: Option<[u8; 32]>,
    /// In which order blocks that nobody holds make room; none: the least recently used first, by priority.
    pub eviction: Option<Arc<dyn EvictionPolicy>>,
    /// Events that are kept for those who follow which blocks can be found; 0: none.
    pub events: u32,
    /// The device; see [`crate::device()`].
    pub device: Device,
    /// The most bytes it may keep, staging included.
    pub memory_limit_bytes: Option<u64>,
    /// The budget that this cache's memory is taken from; none: that of the process.
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
            window: None,
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
