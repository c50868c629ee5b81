//! The growing cache.

pub mod cache;
pub mod pair;
pub mod random;
