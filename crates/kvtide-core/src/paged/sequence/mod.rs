//! Sequences: blocks and tokens of each, what of them is only tried, and what else holds blocks.
//!
//! ```text
//! key_chain -> content -> held, sequences
//! ```

mod content;
mod held;
mod id_hasher;
mod key_chain;
mod sequences;

pub use content::Content;
pub use held::Held;
pub use key_chain::KeyChain;
pub use sequences::{Named, OpenStep, Sequence, Sequences};
