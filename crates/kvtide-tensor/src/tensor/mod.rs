//! Tensors of the cache and of its callers: what goes in, where it lies, and what is shown of it.
//!
//! ```text
//! host, buffer      the memory of a caller; that of a cache, and when its slots were written
//! view              what is shown: slots of a buffer, stale once one of them is written
//! source            a candle tensor, a view, or the memory of a caller; and the same once its strides are known
//! rows              new tokens into a buffer; rows from slot to slot
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
