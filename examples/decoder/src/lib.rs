//! A small decoder on kvtide's caches.
//!
//! ```text
//! Decoder::forward(tokens, cache)
//!   positions = cache.begin(tokens)            makes room, says where the tokens stand
//!   for each block
//!     q, k, v = projections, turned by position
//!     cache.write(layer, k, v)
//!     cache.attend(layer, q)                   sees its own tokens too
//!   cache.commit()                             all layers, or none
//! ```
//!
//! The model knows nothing of how keys and values are kept, a cache nothing of weights: [`Cache`] is all that they share.
//! [`Sequences`] is one, of sequences in a `PagedKvCache`; [`Layers`] another, a contiguous cache for each layer.
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
