//! The kernels in candle's tensor operations alone: what a device without kernels of its own runs, and what tests hold the
//! others against.
//!
//! ```text
//! source  (host memory, a candle tensor, a view)
//!   boxes of at most 1 MiB, row by row        boxes.rs
//!   each one made contiguous on the device    source.rs
//!   and set in its place                      put.rs      or given back to the host: fetch.rs
//! ```
//!
//! No operation allocates more than [`CHUNK_BYTES`]. Rows that move inside a buffer go through such a piece of memory too, in
//! the order in which nothing is written over that is still to be read. Each operation takes candle's lock for itself, so a
//! reader looks at the buffer's log behind the last one. O(bytes moved).

mod boxes;
mod fetch;
mod put;
mod relay;

pub(super) use fetch::fetch;
pub(super) use put::put;
pub(crate) use put::{Grid, Strided};
pub(super) use relay::relay;

/// The most bytes that an operation allocates. Unit tests have few bytes to move, and cut them all the same.
const CHUNK_BYTES: usize = if cfg!(test) { 64 } else { 1 << 20 };
