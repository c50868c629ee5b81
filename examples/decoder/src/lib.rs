//! A small decoder on kvtide's caches.
//!
//! ```text
//! Decoder::forward(tokens, cache)
//!   positions = cache.begin(tokens)            takes blocks, returns the tokens' positions
//!   for each block
//!     q, k, v = projections, rotated by position
//!     cache.write(layer, k, v)
//!     cache.attend(layer, q)                   attends to the step's own tokens too
//!   cache.commit()                             all layers, or none
//! ```
//!
//! The model does not depend on the storage of keys and values, nor a cache on weights: [`Cache`] is their only interface.
//! It has two implementations: [`Sequences`] of a `PagedKvCache`, and [`Layers`], a contiguous cache for each layer.
#![deny(missing_docs)]

mod attention;
mod block;
mod cache;
mod config;
mod decoder;
mod error;
mod family;
mod fields;
mod greedy;
mod layers;
mod linear;
mod mlp;
mod norm;
mod rope;
mod sequences;
mod weights;

pub use cache::Cache;
pub use config::Config;
pub use decoder::Decoder;
pub use error::{Error, Result};
pub use family::Family;
pub use greedy::{Decoded, greedy};
pub use layers::Layers;
pub use sequences::Sequences;
