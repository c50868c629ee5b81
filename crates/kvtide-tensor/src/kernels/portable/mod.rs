//! The kernels in candle's tensor operations alone: what a device without kernels of its own runs, and what tests hold the
//! others against.
//!
//! ```text
//! source  (host memory, a candle tensor, a view)
//!   boxes of at most 1 MiB, row by row        boxes.rs
//!   each one made contiguous on the device    put.rs
//!   and set in its place                      put.rs      or given back to the host: fetch.rs
//! ```
//!
//! No operation allocates more than that. Rows that move inside a buffer go through such a piece of memory too, in the order in
//! which nothing is written over that is still to be read. Each operation takes candle's lock for itself, so a reader looks at
//! the buffer's log behind the last one. O(bytes moved).

mod boxes;
mod fetch;
mod put;
mod relay;

pub(crate) use fetch::fetch;
pub(crate) use put::{HostOrTensor, RowTensor, put};
pub(crate) use relay::relay;
