//! Rewrites ONNX models so that their attentions are kvtide's. Bytes in, bytes out: no runtime, no cache, no tensor.
//!
//! ```text
//! Model::read(source)            the graph, and where its weights lie; no weight is loaded
//! Rewritten::new(source, model)  attentions found and replaced; pasts, masks and what served them dropped
//!   .model().segments(..)        own bytes and ranges of the source
//!   .parts(source)               the same graph cut at its attentions
//!   .inspection()                what was found, layer by layer
//! model.new_rows_suffix(presents)  bytes to put behind those of any model: new rows of its presents as outputs
//! ```
//!
//! What always holds:
//!
//! - A source is read by position and never mapped. What takes memory is the graph, within a limit, and never a weight.
//! - What was not changed is written as it was, byte for byte.
//! - Recognition is by structure: names of nodes mean nothing, and masks are computed instead of compared.
//! - A tensor that takes the place of another one has its name, so what reads it does not change.
//! - Every refusal names a place: an offset in the source, a tensor, or a node with its operator.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod error;
mod eval;
mod find;
mod inspect;
mod new_rows;
mod parts;
mod proto;
mod rewrite;
mod source;
mod wire;

pub use error::{Error, Result};
pub use find::{Form, Layer, Layout, Rotary};
pub use inspect::{Inspection, Port};
pub use new_rows::{NEW_ROWS, new_rows_of};
pub use parts::{GraphPart, PartAttention};
pub use proto::{ElementType, External, GRAPH_BYTES_MAX, Model, Place, Weights};
pub use rewrite::{Options, Rewritten};
pub use source::{FileSource, Source, Span};
pub use wire::{Segment, Segments};

/// The example of the page that registries show.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
