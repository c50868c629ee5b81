//! Tensors of the cache and of its callers: what goes in, where it lies, and what is shown of it.

pub(crate) mod buffer;
pub(crate) mod owned_source;
pub(crate) mod resolved;
pub(crate) mod shown;
pub(crate) mod snapshot;
pub(crate) mod source;
pub(crate) mod token_kv;
pub(crate) mod tree_mask;
pub(crate) mod view;
