//! Many sequences over groups of layers.
//!
//! ```text
//! cache     the groups, and the operations on all of them
//! step      tokens layer by layer                       append.rs: all layers in one call
//! run       a step on another thread
//! states    states of layers, as bytes
//! draft     transactions                                hold.rs: snapshots, matches
//! read      tokens by position                          layer_pages.rs: pages in place, with the model's rules
//! events    events of the prefix cache, for followers
//! saved     saving and loading prefixes and sequences   below.rs: offloading and restoring single blocks
//! options   a model's layers, and the room of each group
//! ```
//!
//! Layers that keep the same tokens in the same sizes on one device form a group; if all layers are like that, there is a
//! single group. A layer that reads another layer's keys and values stores none of its own: it is not written, and its
//! queries attend to the other layer's.

mod append;
mod below;
mod cache;
mod draft;
mod events;
mod hold;
mod layer_pages;
mod layer_place;
mod options;
mod pools;
mod prefix_namer;
mod read;
mod resume;
mod run;
mod saved;
mod states;
mod step;

pub use append::{Tokens, TokensKv};
pub use below::Returning;
pub use cache::PagedKvCache;
pub use draft::PagedSequence;
pub use events::{BlockContent, FollowedGroups, UnseenCacheEvents};
pub use hold::{PagedPrefix, PagedSnapshot};
pub use layer_pages::LayerPages;
pub use options::{PagedModelOptions, PoolRoom};
pub use prefix_namer::{PrefixNamer, PromptOptions};
pub use run::StepRun;
pub use saved::{BlockNames, FoundBlocks, NewBlocks, SavedGroup};
pub use step::PagedStep;
