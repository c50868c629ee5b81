//! The contiguous caches: several planners over one executor.

pub(crate) mod executor;
pub(crate) mod kv_cache;
pub(crate) mod options;
pub(crate) mod rollback_cache;
pub(crate) mod rotating;
pub(crate) mod transaction;

pub(crate) use executor::*;
