//! Sequences: blocks and tokens of each, what of them is only tried, and what else holds blocks.
//!
//! ```text
//! key_chain -> content -> held_content, sequences
//! ```

mod content;
mod held_content;
mod id_hasher;
mod key_chain;
mod sequences;

pub use content::Content;
pub use held_content::HeldContent;
pub use key_chain::KeyChain;
pub use sequences::{NamedSeats, OpenStep, Sequence, Sequences};
