//! Rewrites ONNX models so that their attentions and states run on kvtide. Bytes in, bytes out: no runtime, no cache, no tensor.
//!
//! ```text
//! Model::read(source)            the graph, and the places of its weights; no weight is loaded
//! Rewritten::new(source, model)  finds and replaces attentions, and layers that keep a state; drops pasts, masks and the
//!                                nodes that only served them
//!   .model().segments(..)        own bytes and ranges of the source
//!   .fused()                     the same graph with fewer nodes: attention does the work of the nodes around it
//!   .parts(source)               the same graph as subgraphs, cut at its attentions and states
//!   .inspection()                the findings, layer by layer
//! model.context_length()         the number of positions in its tables
//! model.new_rows_suffix(presents)  bytes to append to any model: outputs with the new rows of its presents
//! ```
//!
//! Guarantees:
//!
//! - A source is read by position and never mapped. Memory is used for the graph, up to a limit, and never for weights.
//! - Unchanged fields are written as they were, byte for byte.
//! - Recognition is by structure: names of nodes do not matter, and masks are evaluated instead of compared.
//! - A tensor that replaces another one has the same name, so its readers do not change.
//! - Every error names a place: an offset in the source, a tensor, or a node with its operator.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod apart;
mod context;
mod cross_names;
mod error;
mod eval;
mod find;
mod inspect;
mod new_rows;
mod parts;
mod proto;
mod regular;
mod rewrite;
mod source;
mod split_pasts;
mod state_names;
mod wire;

pub use error::{Error, RefusalKind, Result};
pub use find::{Form, Layer, Layout, Rotary, State, StateForm};
pub use inspect::Inspection;
pub use new_rows::{NEW_ROWS, new_rows_of};
pub use parts::{GraphPart, PartAttention, PartState};
pub use proto::{ElementType, External, GRAPH_BYTES_MAX, Model, Place, Port, Weights};
pub use rewrite::{LongRope, Options, Rewritten};
pub use source::{FileSource, Source, Span};
pub use wire::{Segment, Segments};

/// Tests the example of the crate's README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
