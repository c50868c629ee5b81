//! Lists of blocks: those of sequences, as trees that share what they have in common, and plain ones for callers.

mod block_table;
mod tables;

pub use block_table::BlockTable;
pub use tables::{Reservation, Table, Tables};
