//! KV caches in files: saves and loads a cache's prefix cache, one sequence, or a cache of one layer.
//!
//! ```text
//! save, cache, sequence, tensors   saving and loading of each kind
//! pages                            blocks and their checksums, and the lists that describe them
//! container                        a safetensors file: a header of bounded size, and tensors that cover the rest, none twice
//! identity                         the model and the form: compared field by field before anything else is read
//! sink, source                     a temporary file that replaces the old one in one step, or memory; read in pieces
//! fs                               the calls of the file system, which tests replace
//! ```
//!
//! Data is verified before it is used: bounds, then identity, then checksums. A load that fails changes nothing. See
//! `docs/format.md`.
//!
//! ```
//! use kvtide_files::{CacheFile, LoadOptions, Source, Watch};
//! use kvtide_tensor::buffers::Source as Rows;
//! use kvtide_tensor::{HostTensor, PagedKvCache, PagedKvCacheOptions, PromptOptions, Tokens};
//!
//! let options = PagedKvCacheOptions { capacity: 8, block_size: 2, head_dim: 2, ..PagedKvCacheOptions::default() };
//! let mut cache = PagedKvCache::new(options)?;
//! let sequence = cache.create_sequence()?;
//! let rows = [1f32; 8].map(f32::to_ne_bytes).concat();
//! let rows = || HostTensor::new("k", &rows, kvtide_tensor::DType::F32, &[1, 1, 4, 2]);
//! let kv = Tokens::of_all(Rows::Host(rows()?), Rows::Host(rows()?));
//! cache.append_to(sequence, None, Tokens { ids: Some(&[5, 6, 7, 8]), ..kv })?;
//!
//! let bytes = kvtide_files::save_cache_bytes(&mut cache, &Watch::default())?;
//! let file = CacheFile::open(Source::bytes(bytes))?;
//! let mut again = file.load(LoadOptions::default(), &Watch::default())?;
//! assert_eq!(again.find_prefix(&[5, 6, 7, 8, 9], PromptOptions::default(), false)?.length(), 4);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod cache;
mod container;
mod error;
mod fs;
mod identity;
mod pages;
mod regular;
mod save;
mod sequence;
mod sink;
mod source;
mod tensors;
mod watch;

pub use cache::{CacheFile, CacheLoad, LoadOptions};
pub use error::{Error, Result};
pub use fs::{Disk, Fs, FsFile};
pub use identity::Identity;
pub use save::{Save, save_cache, save_cache_bytes, save_sequence, save_sequence_bytes};
pub use sequence::{SequenceFile, load_sequence};
pub use sink::{Sink, sweep};
pub use source::Source;
pub use tensors::{Place, TensorFile};
pub use watch::Watch;

/// The example of the README, which registries show.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
