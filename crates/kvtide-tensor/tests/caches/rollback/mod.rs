//! The cache of tentative tokens.

pub mod cache;
pub mod pair;
pub mod random;
