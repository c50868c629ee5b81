//! The files of kvtide-tensor under test, with loom's atomics and errors of their own.

#[path = "../../../crates/kvtide-tensor/src/base/idle.rs"]
pub mod idle;
#[path = "../../../crates/kvtide-tensor/src/base/life.rs"]
pub mod life;
#[path = "../../../crates/kvtide-tensor/src/base/lock.rs"]
pub mod lock;
#[path = "../../../crates/kvtide-tensor/src/base/memory.rs"]
pub mod memory;

pub mod sync {
    pub use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
}

pub mod error {
    /// The errors that the files return.
    #[derive(Debug)]
    pub enum Error {
        Busy,
        OutOfMemory { requested_bytes: u64, used_bytes: u64, limit_bytes: u64 },
    }

    pub type Result<T> = std::result::Result<T, Error>;
}
