//! The contiguous caches, one file per class. Each call returns numbers that describe a view, not a native object.

pub(crate) mod kv_cache;
pub(crate) mod rollback_cache;
pub(crate) mod rotating_cache;
pub(crate) mod transaction;
