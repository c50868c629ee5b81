//! What the caches are made with. Every field has a default, so that callers name what they mean.

use std::sync::Arc;

use candle_core::Device;
use kvtide_core::COUNT_MAX;

use crate::base::dtype::DType;
use crate::base::memory::Budget;
use crate::tensor::source::SEQUENCE;

/// What a [`KvCache`](crate::KvCache) is made with.
#[derive(Clone, Debug)]
pub struct KvCacheOptions {
    /// Rows of the batch.
    pub batch_size: u32,
    /// Heads of K and V.
    pub num_kv_heads: u32,
    /// Slots at the start, cut to `max_seq_len`.
    pub initial_capacity: u32,
    /// The most tokens it may hold.
    pub max_seq_len: u32,
    /// Elements of one head.
    pub head_dim: u32,
    /// The element type.
    pub dtype: DType,
    /// The device; see [`crate::device()`].
    pub device: Device,
    /// Reserves `max_seq_len` slots at the start, so that no address ever changes.
    pub stable_addresses: bool,
    /// The most bytes it may keep, snapshots and copies included.
    pub memory_limit_bytes: Option<u64>,
    /// The budget that this cache's memory is taken from; none: that of the process.
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

/// What a rotating cache is made with.
#[derive(Clone, Debug)]
pub struct RotatingCacheOptions {
    /// The axis of the sequence. K and V have it at 2.
    pub dim: usize,
    /// Tokens in the window, at least 1.
    pub max_seq_len: u32,
    /// Slots at the start, cut to `sinks + max_seq_len`; none: 256.
    pub capacity_seq_len: Option<u32>,
    /// Tokens at the start that are never dropped, in addition to the window.
    pub sinks: u32,
    /// Free slots behind a full window; none: a quarter of it, at least 64.
    pub slack: Option<u32>,
    /// The device; see [`crate::device()`].
    pub device: Device,
    /// The most bytes it may keep, snapshots and copies included.
    pub memory_limit_bytes: Option<u64>,
    /// The budget that this cache's memory is taken from; none: that of the process.
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

/// What a [`RollbackCache`](crate::RollbackCache) is made with.
#[derive(Clone, Debug)]
pub struct RollbackCacheOptions {
    /// The device; see [`crate::device()`].
    pub device: Device,
    /// The most bytes it may keep.
    pub memory_limit_bytes: Option<u64>,
    /// The budget that this cache's memory is taken from; none: that of the process.
    pub budget: Option<Arc<Budget>>,
}

impl Default for RollbackCacheOptions {
    fn default() -> Self {
        RollbackCacheOptions { device: Device::Cpu, memory_limit_bytes: None, budget: None }
    }
}
