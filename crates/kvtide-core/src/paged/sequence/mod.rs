//! Sequences: the blocks and tokens of each, its open drafts and step; and what else holds blocks.

mod content;
mod sequences;

pub use content::{Content, HeldContent, KeyChain, SavedChain};
pub use sequences::{NamedSeats, OpenStep, Sequence, Sequences};
