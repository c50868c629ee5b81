//! The messages of ONNX, as far as a rewrite needs them. Other fields stay ranges of the source, and are written
//! unchanged.
//!
//! Reading is O(graph); the data of weights are not read.

mod element;
mod graph;
mod model;
mod order;
mod port;
mod tensor;
mod value_info;

pub use element::ElementType;
pub(crate) use graph::{Attribute, AttributeValue, Graph, Node};
pub use model::{GRAPH_BYTES_MAX, Model};
pub(crate) use order::checked;
pub use port::Port;
pub(crate) use port::port;
pub(crate) use tensor::Tensor;
pub use tensor::{External, Place, Weights};
pub(crate) use value_info::{Dim, ValueInfo};

use crate::error::Result;
use crate::source::{Source, Span};
use crate::wire::Segments;

/// A message that was read and not changed, or a new one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Encoded {
    Source(Span),
    Own(Segments),
}

impl Encoded {
    fn write(&self, number: u32, to: &mut Segments) {
        match self {
            Self::Source(span) => to.message_span(number, *span),
            Self::Own(message) => to.message(number, message),
        }
    }
}

/// The greatest depth of nested graphs.
const DEPTH_MAX: usize = 16;

/// The bytes of a span.
pub(crate) fn load(source: &dyn Source, span: Span) -> Result<Vec<u8>> {
    let mut segments = Segments::default();
    segments.span(span);
    segments.to_bytes(source)
}
