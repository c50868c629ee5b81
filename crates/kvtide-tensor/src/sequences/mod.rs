//! Many sequences over groups of layers.
//!
//! ```text
//! cache     the groups, and what they do together
//! step      tokens layer by layer                       append.rs: all layers in one call
//! run       the same on another thread
//! draft     transactions                                hold.rs: snapshots, prefixes that were found
//! read      tokens by position                          layer_pages.rs: pages in place, with the model's rules
//! saved     what leaves the cache to be kept elsewhere, and comes back     below.rs: block by block, as they make room
//! options   a model's layers, and the room of each group
//! ```
//!
//! Layers that keep the same tokens in the same sizes on one device are a group: all of them where they are alike. A layer that
//! reads another's keys and values has none of its own: it is not written, and its queries attend to the other's.

mod append;
mod below;
mod cache;
mod draft;
mod hold;
mod layer_pages;
mod options;
mod pools;
mod prefix_namer;
mod read;
mod resume;
mod run;
mod saved;
mod step;

pub use append::{Tokens, TokensKv};
pub use below::Returning;
pub use cache::PagedKvCache;
pub use draft::PagedSequence;
pub use hold::{PagedPrefix, PagedSnapshot};
pub use layer_pages::LayerPages;
#[cfg(feature = "captured-steps")]
pub(crate) use layer_pages::Rules;
pub use options::{PagedModelOptions, PoolRoom};
pub use prefix_namer::{PrefixNamer, PromptOptions};
pub use run::StepRun;
pub use saved::{BlockNames, FoundBlocks, NewBlocks, SavedGroup};
pub use step::PagedStep;
