//! The atomics of this crate's shared state. The models in `concurrency/` compile the same files with loom's.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
