//! Lists of blocks: those of sequences as trees that share what they have in common, and plain ones for callers of their own.
//!
//! ```text
//! reservation -> tables        block_table
//! ```

mod block_table;
mod reservation;
mod tables;

pub use block_table::BlockTable;
pub use reservation::Reservation;
pub use tables::{Table, Tables};
