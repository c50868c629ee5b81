//! Tensors of caches and callers: inputs, the memory of caches, and views of it.
//!
//! ```text
//! host, buffer      the memory of a caller; the memory of a cache, with a log of its writes
//! view              slots of a buffer, stale once one of them is overwritten
//! source            an input: a candle tensor, a view, or the memory of a caller; resolved once its strides are known
//! rows              copies new tokens into a buffer, and rows from slot to slot
//! ```

pub(crate) mod buffer;
pub(crate) mod host;
pub(crate) mod owned_source;
pub(crate) mod rows;
pub(crate) mod shown;
pub(crate) mod source;
pub(crate) mod token_kv;
pub(crate) mod tree_mask;
pub(crate) mod view;

#[cfg(test)]
#[path = "../../tests/inside/rows.rs"]
mod tests;
