//! What a launch can fail with.

/// A launch's outcome.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a launch failed; what it was to write is then in no known state.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The device has no memory for what a launch needs beside its spans.
    #[error("no device memory for {bytes} bytes: {free} of {total} are free")]
    OutOfMemory {
        /// Wanted at once.
        bytes: u64,
        /// What the device has left.
        free: u64,
        /// What it has in all.
        total: u64,
    },
    /// The device, or its driver, refused.
    #[error("{kernel} failed: {reason}")]
    Launch {
        /// The kernel's name.
        kernel: &'static str,
        /// What the driver says.
        reason: String,
    },
}
