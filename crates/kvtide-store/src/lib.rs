//! KV caches that outlive their process.
//!
//! ```text
//! container   a safetensors file: a header of bounded size, and tensors that cover the rest, none twice
//! identity    of which model, in which form: compared field by field before anything is read
//! sink        a temporary file that takes the place of the old one in one step; or memory
//! source      a file, or memory; read in pieces
//! pages       blocks and their sums, and the lists that say what they are
//! entry       one block in a store: its name, its bytes, what they are of         folder: a store of them without a server
//! tiers       what lies below a cache: blocks go down as they make room, and come back for a prompt
//! save        cache: what prompts find; sequence: one conversation; tensors: a cache of one layer; all are loaded again
//! ```
//!
//! What is read is verified first: bounds, then identity, then checksums. A load that fails changes nothing. See `docs/format.md`.
//!
//! ```
//! use kvtide_store::{CacheFile, LoadOptions, Source, Watch};
//! use kvtide_tensor::{HostTensor, PagedKvCache, PagedKvCacheOptions, PromptOptions, Source as Rows, Tokens};
//!
//! let options = PagedKvCacheOptions { capacity: 8, block_size: 2, head_dim: 2, ..PagedKvCacheOptions::default() };
//! let mut cache = PagedKvCache::new(options)?;
//! let sequence = cache.create_sequence()?;
//! let rows = [1f32; 8].map(f32::to_ne_bytes).concat();
//! let rows = || HostTensor::new("k", &rows, kvtide_tensor::DType::F32, &[1, 1, 4, 2]);
//! let kv = Tokens::of_all(Rows::Host(rows()?), Rows::Host(rows()?));
//! cache.append_to(sequence, None, Tokens { ids: Some(&[5, 6, 7, 8]), ..kv })?;
//!
//! let bytes = kvtide_store::save_cache_bytes(&mut cache, &Watch::default())?;
//! let file = CacheFile::open(Source::bytes(bytes))?;
//! let mut again = file.load(LoadOptions::default(), &Watch::default())?;
//! assert_eq!(again.find_prefix(&[5, 6, 7, 8, 9], PromptOptions::default(), false)?.length(), 4);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod cache;
mod container;
mod entry;
mod error;
mod folder;
mod identity;
mod pages;
mod save;
mod sequence;
mod sink;
mod source;
mod tensors;
mod tiers;
mod watch;

pub use cache::{CacheFile, CacheLoad, LoadOptions};
pub use entry::{Decoded, Entry, Expected, StoreKey, decode, encode};
pub use error::{Error, Result};
pub use folder::{Folder, FolderUsage};
pub use identity::Identity;
pub use save::{Save, save_cache, save_cache_bytes, save_sequence, save_sequence_bytes};
pub use sequence::{SequenceFile, load_sequence};
pub use sink::{Sink, sweep};
pub use source::Source;
pub use tensors::{Place, TensorFile};
pub use tiers::{
    Bring, EntryStore, Lookup, LowerOptions, LowerPlace, MemoryOptions, Pending, Policy, SharedStore, TierEvent,
    TierOptions, TierSet, TierStats, Tiers,
};
pub use watch::Watch;

/// The example of the page that registries show.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
