//! Options of the contiguous caches. Every field has a default.

use std::sync::Arc;

use candle_core::Device;
use kvtide_core::COUNT_MAX;

use crate::base::dtype::DType;
use crate::base::memory::Budget;
use crate::tensor::source::SEQUENCE;

/// Options of a [`KvCache`](crate::KvCache).
#[derive(Clone, Debug)]
pub struct KvCacheOptions {
    /// The batch size.
    pub batch_size: u32,
    /// The number of KV heads.
    pub num_kv_heads: u32,
    /// The initial number of slots; `max_seq_len` if that is smaller.
    pub initial_capacity: u32,
    /// The largest number of tokens.
    pub max_seq_len: u32,
    /// Elements of one head.
    pub head_dim: u32,
    /// The element type.
    pub dtype: DType,
    /// The device; see [`crate::runtime::device()`].
    pub device: Device,
    /// Allocates `max_seq_len` slots at the start, so that no address ever changes.
    pub stable_addresses: bool,
    /// The most bytes that it may use, including snapshots and copies.
    pub memory_limit_bytes: Option<u64>,
    /// The budget that the cache's memory is taken from; the process's by default.
    pub budget: Option<Arc<Budget>>,
}

impl Default for KvCacheOptions {
    fn default() -> Self {
        KvCacheOptions {
            batch_size: 1,
            num_kv_heads: 1,
            initial_capacity: 256,
            max_seq_len: COUNT_MAX,
            head_dim: 1,
            dtype: DType::F32,
            device: Device::Cpu,
            stable_addresses: false,
            memory_limit_bytes: None,
            budget: None,
        }
    }
}

/// Options of a rotating cache.
#[derive(Clone, Debug)]
pub struct RotatingCacheOptions {
    /// The axis of the sequence; 2 for K and V.
    pub dim: usize,
    /// The number of tokens in the window, at least 1.
    pub max_seq_len: u32,
    /// The initial number of slots, 256 by default; `sinks + max_seq_len` if that is smaller.
    pub capacity_seq_len: Option<u32>,
    /// Tokens at the start that are never dropped, in addition to the window.
    pub sinks: u32,
    /// The number of free slots behind a full window; a quarter of the window by default, at least 64.
    pub slack: Option<u32>,
    /// The device; see [`crate::runtime::device()`].
    pub device: Device,
    /// The most bytes that it may use, including snapshots and copies.
    pub memory_limit_bytes: Option<u64>,
    /// The budget that the cache's memory is taken from; the process's by default.
    pub budget: Option<Arc<Budget>>,
}

impl Default for RotatingCacheOptions {
    fn default() -> Self {
        RotatingCacheOptions {
            dim: SEQUENCE,
            max_seq_len: 4096,
            capacity_seq_len: None,
            sinks: 0,
            slack: None,
            device: Device::Cpu,
            memory_limit_bytes: None,
            budget: None,
        }
    }
}

/// Options of a [`RollbackCache`](crate::RollbackCache).
#[derive(Clone, Debug)]
pub struct RollbackCacheOptions {
    /// The device; see [`crate::runtime::device()`].
    pub device: Device,
    /// The most bytes that it may use.
    pub memory_limit_bytes: Option<u64>,
    /// The budget that the cache's memory is taken from; the process's by default.
    pub budget: Option<Arc<Budget>>,
}

impl Default for RollbackCacheOptions {
    fn default() -> Self {
        RollbackCacheOptions { device: Device::Cpu, memory_limit_bytes: None, budget: None }
    }
}
