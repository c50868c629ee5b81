//! Blocks, tables and sequences: the planners of the paged cache.
//!
//! ```text
//! sequence 7   [ block 2 ][ block 0 ]     PagedPlanner: which block and slot a token of a sequence lies in
//!                   |          |
//! pool         0  1  2  3  4  5  6  7     BlockPool: which blocks are in use, and by which handle
//!                   |
//! slab         bytes of block 2           PageLayout: where a row of a block lies
//! ```
//!
//! A block holds `block_size` tokens of every layer. [`BlockTable`] is the plain list of blocks per layer, for callers
//! who keep their own sequences on a [`BlockPool`].

mod free_list;
mod handle;
mod layout;
mod pool;
mod sequences;
mod slot;
mod table;
mod written;

pub use handle::BlockHandle;
pub use layout::{PageLayout, PageShape, Part};
pub use pool::BlockPool;
pub use sequences::PagedPlanner;
pub use slot::{Slot, SlotPlan};
pub use table::BlockTable;
