//! Synchronous launches: with `KVTIDE_CUDA_SYNC=1` each launch waits for its kernel, so that a fault is reported with the
//! name of the kernel that caused it.

use std::sync::OnceLock;

#[cfg(feature = "emulate")]
thread_local! {
    static CHOSEN: std::cell::Cell<Option<bool>> = const { std::cell::Cell::new(None) };
}

/// True if each launch waits for its kernel: if `KVTIDE_CUDA_SYNC` is set, and neither empty nor 0.
pub(crate) fn is_synced() -> bool {
    static NAMED: OnceLock<bool> = OnceLock::new();
    #[cfg(feature = "emulate")]
    if let Some(chosen) = CHOSEN.get() {
        return chosen;
    }
    *NAMED.get_or_init(|| std::env::var_os("KVTIDE_CUDA_SYNC").is_some_and(|value| !value.is_empty() && value != "0"))
}

/// Replaces the variable for this thread, for tests; `None` follows the variable again.
#[cfg(feature = "emulate")]
pub(crate) fn choose(each_launch: Option<bool>) {
    CHOSEN.set(each_launch);
}
