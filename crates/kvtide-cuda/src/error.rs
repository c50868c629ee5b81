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
        /// What was done: a kernel's name, or a copy, an allocation, a wait.
        kernel: &'static str,
        /// Why it failed, in words.
        reason: String,
        /// What the driver calls it; nothing where the driver was not asked.
        driver: Option<DriverError>,
    },
}

/// A failure by the driver's own name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverError {
    /// Its number: 700.
    pub code: u32,
    /// Its name: `CUDA_ERROR_ILLEGAL_ADDRESS`.
    pub name: String,
}

/// What a failed capture is called.
const CAPTURE: &str = "the capture of a graph";

impl Error {
    /// A refusal that is not the driver's.
    pub(crate) fn launch(kernel: &'static str, reason: impl Into<String>) -> Self {
        Error::Launch { kernel, reason: reason.into(), driver: None }
    }

    /// What a capture refuses.
    pub(crate) fn capture(reason: impl Into<String>) -> Self {
        Error::launch(CAPTURE, reason)
    }

    /// A refusal of the driver's. A launch is over before its kernel has run: a fault of that is told by whatever comes behind it.
    #[cfg_attr(not(any(feature = "cuda", feature = "emulate")), expect(dead_code, reason = "a build without a driver"))]
    pub(crate) fn driver(kernel: &'static str, driver: DriverError, text: &str) -> Self {
        let is_earlier = matches!(driver.code, 700 | 702 | 710 | 714..=719) && !crate::stream::is_synced();
        let hint =
            if is_earlier { "; a kernel that was launched before did it: KVTIDE_CUDA_SYNC=1 names it" } else { "" };
        let reason = format!("{text} ({}, {}){hint}", driver.name, driver.code);
        Error::Launch { kernel, reason, driver: Some(driver) }
    }
}
