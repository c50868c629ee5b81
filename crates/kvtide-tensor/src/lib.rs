//! KV caches on candle tensors.
//!
//! The planners of `kvtide-core` decide which slots and blocks a call uses. This crate executes their plans on memory and
//! returns [`View`]s: tensors in the cache's own memory, which cannot be read once the cache has overwritten a slot that
//! they show.
//!
//! | cache | content |
//! | --- | --- |
//! | [`KvCache`] | K and V of one layer; the cache grows |
//! | [`RotatingCache`], [`RotatingKvCache`] | a sliding window, with sinks that stay |
//! | [`RollbackCache`] | tentative tokens, as a chain or a tree, that are committed or rolled back |
//! | [`PagedKvCache`] | many sequences that share one pool of blocks |
//!
//! [`PrefixNamer`] computes the block keys of prompts as paged caches do, for routers that hold no cache.
//! [`Transactional::begin`] opens a [`KvTransaction`]: a draft that leaves no trace unless it is committed.
#![deny(unsafe_code, missing_docs)]

mod attention;
mod base;
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
pub use contiguous::kv_cache::{KvCache, KvSnapshot};
pub use contiguous::options::{KvCacheOptions, RollbackCacheOptions, RotatingCacheOptions};
pub use contiguous::rollback_cache::{RollbackCache, RollbackMark};
pub use contiguous::rotating::{Rotating, RotatingCache, RotatingKvCache, RotatingSnapshot};
pub use contiguous::transaction::{BeginOptions, KvTransaction, Transaction, Transactional};
pub use device::form::{Kernels, with_kernels};
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

/// Runs the example of the README as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// Runs the examples of the guide for users of the crates as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/rust.md")]
struct Guide;
