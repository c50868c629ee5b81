//! Attention on bytes that the host can address, with its vector instructions.
//!
//! ```text
//! split      units: some queries, some KV heads, a share of the keys; merges the shares
//! unit       tile by tile, with a running softmax, and the two products of a tile
//! scratch    a thread's memory for a unit: its rows, their softmax so far, the current tile
//! job        a call and its memory; segments of equidistant keys
//! ```

mod job;
mod pass;
mod scratch;
mod split;
mod unit;

pub(super) use split::run;
