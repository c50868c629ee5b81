//! Attention on bytes that the host sees, with its vectors.
//!
//! ```text
//! split      units: some queries, some heads of K and V, a share of the keys; shares put together again
//! unit       tile by tile, with a running softmax, and the two products of a tile
//! scratch    what a thread remembers of a unit: its rows, their softmax so far, the tile at hand
//! job        a call and its memory; segments of keys at one distance
//! ```

mod job;
mod scratch;
mod split;
mod unit;

pub(super) use split::run;
