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
//! [`PrefixNamer`] names prompts as the caches in blocks do, for routers that hold none of it. [`Transactional::begin`] opens a
//! [`KvTransaction`]: a draft that leaves no trace unless it is committed.
#![deny(unsafe_code, missing_docs)]

mod attention;
mod base;
#[cfg(feature = "captured-steps")]
mod captured;
mod contiguous;
mod device;
mod kernels;
mod paged;
mod sequences;
mod tensor;

pub use attention::{
    AttendOptions, Attended, AttendedPart, KvRows, Room, attend, attend_into, attend_with, merge_attention,
};
pub use base::dims::RANK_MAX;
pub use base::dtype::DType;
pub use base::error::{Error, Result};
pub use base::memory::{Budget, Lease};
pub use base::stats::Stats;
pub use base::threads::{set_threads, threads, with_host};
#[cfg(feature = "captured-steps")]
pub use captured::{CaptureOptions, CapturedStep, StepRecorder};
pub use contiguous::kv_cache::{KvCache, KvSnapshot};
pub use contiguous::options::{KvCacheOptions, RollbackCacheOptions, RotatingCacheOptions};
pub use contiguous::rollback_cache::{RollbackCache, RollbackMark};
pub use contiguous::rotating::{Rotating, RotatingCache, RotatingKvCache, RotatingSnapshot};
pub use contiguous::transaction::{BeginOptions, KvTransaction, Transaction, Transactional};
pub use device::form::{Kernels, with_kernels};
pub use device::memory::pass;
pub use device::{device, device_name, full_name};
pub use paged::{Below, Descent, PageReader, PageRows, PageWriter, PagedKvCacheOptions, StagedPage, StepTokens};
pub use sequences::{
    BlockNames, FoundBlocks, LayerPages, NewBlocks, PagedKvCache, PagedModelOptions, PagedPrefix, PagedSequence,
    PagedSnapshot, PagedStep, PoolRoom, PrefixNamer, PromptOptions, Returning, SavedGroup, StepRun, Tokens, TokensKv,
};
pub use tensor::host::{HostTensor, SequenceLayout};
pub use tensor::owned_source::OwnedSource;
pub use tensor::shown::{BufferHandle, Shown, ShownNumbers};
pub use tensor::source::Source;
pub use tensor::token_kv::TokenKv;
pub use tensor::view::{CacheWindow, Kv, View};

/// The example of the page that registries show.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// The guide for users of the crates: its code is run.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/rust.md")]
struct Guide;
