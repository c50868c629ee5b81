//! Foundations of the crate: dtypes, sizes, memory and its limits, threads, errors.

pub(crate) mod chunks;
pub(crate) mod dims;
pub(crate) mod dtype;
pub(crate) mod error;
pub(crate) mod idle;
pub(crate) mod life;
pub(crate) mod lock;
pub(crate) mod mapped;
pub(crate) mod memory;
pub(crate) mod region;
pub(crate) mod scratch;
pub(crate) mod stats;
pub(crate) mod sync;
pub(crate) mod threads;
pub(crate) mod zeroed;
