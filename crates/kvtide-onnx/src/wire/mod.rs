//! Protobuf at wire level: fields with their places in the source, and messages put together from own bytes and ranges
//! of a source.

mod reader;
mod segments;

pub(crate) use reader::{Field, Reader};
pub use segments::{Segment, Segments};
