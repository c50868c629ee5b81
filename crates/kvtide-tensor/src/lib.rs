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
//!
//! [`attention`] reads caches in place; [`states`] computes layers that keep a state instead of keys and values; [`linear`]
//! multiplies rows with weights where they are; [`pages`], [`buffers`] and [`runtime`] have the parts that engines are built
//! from.
#![deny(unsafe_code, missing_docs)]

pub mod attention;
mod base;
mod contiguous;
mod device;
mod kernels;
pub mod linear;
mod paged;
mod sequences;
pub mod states;
mod tensor;

pub use base::dtype::DType;
pub use base::error::{Error, Result};
pub use base::stats::Stats;
pub use contiguous::kv_cache::{KvCache, KvSnapshot};
pub use contiguous::options::{KvCacheOptions, RollbackCacheOptions, RotatingCacheOptions};
pub use contiguous::rollback_cache::{RollbackCache, RollbackMark};
pub use contiguous::rotating::{Rotating, RotatingCache, RotatingKvCache, RotatingSnapshot};
pub use contiguous::transaction::{BeginOptions, KvTransaction, Transaction, Transactional};
pub use paged::{PagedKvCacheOptions, StepTokens};
pub use sequences::{
    BlockContent, FollowedGroups, PagedKvCache, PagedModelOptions, PagedPrefix, PagedSequence, PagedSnapshot,
    PagedStep, PoolRoom, PrefixNamer, PromptOptions, StepRun, Tokens, TokensKv, UnseenCacheEvents,
};
pub use tensor::host::HostTensor;
pub use tensor::view::{Kv, View};

/// The memory of inputs and results: a caller's tensors and bytes, and the buffers that views show.
pub mod buffers {
    pub use crate::base::dims::RANK_MAX;
    pub use crate::base::dtype::{floats, from_f32};
    pub use crate::tensor::host::SequenceLayout;
    pub use crate::tensor::owned_source::OwnedSource;
    pub use crate::tensor::shown::{BufferHandle, Shown, ShownNumbers};
    pub use crate::tensor::source::Source;
    pub use crate::tensor::token_kv::TokenKv;
    pub use crate::tensor::view::CacheWindow;
}

/// The pages of a paged cache: read in place, saved and loaded, offloaded and restored.
pub mod pages {
    pub use crate::paged::{Below, Descent, PageReader, PageRows, PageWriter, StagedPage};
    pub use crate::sequences::{BlockNames, FoundBlocks, LayerPages, NewBlocks, Returning, SavedGroup};
}

/// Devices, threads, kernels and memory budgets of the process.
pub mod runtime {
    pub use crate::base::chunks::Chunks;
    pub use crate::base::mapped::release_mapped;
    pub use crate::base::memory::{Budget, Lease};
    pub use crate::base::threads::{set_threads, threads, with_host, with_threads};
    pub use crate::device::form::{Kernels, with_kernels};
    pub use crate::device::{device, device_name, full_name};
}

/// Runs the example of the README as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// Runs the examples of the guide for users of the crates as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/rust.md")]
struct Guide;
