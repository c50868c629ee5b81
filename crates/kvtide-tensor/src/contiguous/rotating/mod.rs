//! The rotating caches: one tensor, or K and V together, with one window.
//!
//! Both are [`Rotating`], over one part or two. An append of one token writes only that token; its result is in order in the
//! cache's own memory.

mod pair;
mod single;
mod window;

pub use pair::RotatingKvCache;
pub use single::RotatingCache;
pub use window::{Rotating, RotatingSnapshot};
