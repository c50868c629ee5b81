//! Lists of blocks: those of sequences as trees that share what they have in common, and plain ones for callers of their own.
//!
//! ```text
//! room -> tables        block_table
//! ```

mod block_table;
mod room;
mod tables;

pub use block_table::BlockTable;
pub use room::Room;
pub use tables::{Table, Tables};
