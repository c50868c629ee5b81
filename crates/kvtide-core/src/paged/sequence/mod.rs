//! Sequences: the blocks and tokens of each, its open drafts and step; and other holders of blocks.
//!
//! The blocks of a sequence always cover its tokens. Finding a sequence and forking its content are O(1).

mod content;
mod sequences;

pub use content::{Content, HeldContent, KeyChain, SavedChain};
pub use sequences::{NamedSeats, OpenStep, Sequence, Sequences};
