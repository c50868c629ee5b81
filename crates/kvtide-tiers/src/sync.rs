//! The locks of the offload queue and of restores. The models in `concurrency/` compile the same files with shuttle's.

pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
