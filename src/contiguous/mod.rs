//! The contiguous caches, one file per class.

pub(crate) mod kv_cache;
pub(crate) mod rollback_cache;
pub(crate) mod rotating_cache;
pub(crate) mod transaction;
