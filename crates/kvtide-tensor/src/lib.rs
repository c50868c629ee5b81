//! KV caches on candle tensors.
//!
//! The planners of `kvtide-core` decide what goes where; this crate carries it out and hands out [`View`]s: tensors in the
//! cache's own memory, which refuse to be read once a slot that they show was overwritten.
//!
//! | cache | what it does |
//! | --- | --- |
//! | [`KvCache`] | K and V of a layer, growing |
//! | [`RotatingCache`], [`RotatingKvCache`] | a sliding window, with sinks that stay |
//! | [`RollbackCache`] | tentative tokens, committed or taken back, chain or tree |
//! | [`PagedKvCache`] | many sequences in one pool of blocks |
//!
//! [`PrefixNamer`] names prompts as the caches in blocks do, for routers that hold none of it. [`Transactional::begin`] opens a [`KvTransaction`]: a draft that leaves no trace unless it is committed.
#![deny(unsafe_code, missing_docs)]

mod attention;
mod buffer;
mod captured;
mod contiguous;
mod device;
mod dims;
mod dtype;
mod edit;
mod error;
mod form;
mod kernels;
mod kv_cache;
mod kv_pair;
mod life;
mod memory;
mod options;
mod owned_source;
mod paged;
mod region;
mod resolved;
mod rollback_cache;
mod rotating;
mod sequences;
mod shown;
mod snapshot;
mod source;
mod stats;
mod threads;
mod token_kv;
mod transaction;
mod tree_mask;
mod view;
mod zeroed;

pub use attention::{
    AttendOptions, Attended, AttendedPart, KvRows, Room, attend, attend_into, attend_with, merge_attention,
};
pub use captured::{CaptureOptions, CapturedStep, StepRecorder};
pub use device::{device, device_name, full_name};
pub use dims::RANK_MAX;
pub use dtype::DType;
pub use error::{Error, Result};
pub use kernels::{Kernels, with_kernels};
pub use kv_cache::{KvCache, KvSnapshot};
pub use memory::{Budget, Lease};
pub use options::{KvCacheOptions, RollbackCacheOptions, RotatingCacheOptions};
pub use owned_source::OwnedSource;
pub use paged::{PageRows, PagedKvCacheOptions, PromptOptions, StepTokens};
pub use rollback_cache::{RollbackCache, RollbackMark};
pub use rotating::{Rotating, RotatingCache, RotatingKvCache, RotatingSnapshot};
pub use sequences::{
    LayerPages, ModelCacheOptions, PagedKvCache, PagedPrefix, PagedSequence, PagedSnapshot, PagedStep, PoolRoom,
    PrefixNamer, Tokens, TokensKv,
};
pub use shown::{BufferHandle, Shown, ShownNumbers};
pub use source::{HostTensor, SequenceLayout, Source};
pub use stats::Stats;
pub use threads::{set_threads, threads};
pub use token_kv::TokenKv;
pub use transaction::{BeginOptions, KvTransaction, Transaction, Transactional};
pub use view::{CacheWindow, Kv, View};

/// The example of the page that registries show.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
