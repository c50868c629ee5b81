//! The rotating caches.

pub mod call;
pub mod kv_cache;
pub mod model;
pub mod pair;
pub mod random;
pub mod single;
