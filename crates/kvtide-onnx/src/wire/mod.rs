//! Protobuf at wire level: reads fields with their places in the source, and assembles messages from own bytes and
//! ranges of a source.
//!
//! Reading keeps within a budget of memory, and writing copies no range above 4 KiB.

mod reader;
mod segments;

pub(crate) use reader::{Field, Reader};
pub use segments::{Segment, Segments};
