//! Errors of launches.

use crate::synced::is_synced;

/// The result of a launch.
pub type Result<T> = std::result::Result<T, Error>;

/// The reason for which a launch failed. The memory that it was to write is then in an unknown state.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The device has too little memory for what a launch needs in addition to its spans.
    #[error("cannot allocate {bytes} bytes of device memory: {free} of {total} bytes are free")]
    OutOfMemory {
        /// The number of bytes requested.
        bytes: u64,
        /// The free bytes of the device.
        free: u64,
        /// All bytes of the device.
        total: u64,
    },
    /// The device, or its driver, reported a failure.
    #[error("{kernel} failed: {reason}")]
    Launch {
        /// The failed operation: a kernel's name, or a copy, an allocation, a wait.
        kernel: &'static str,
        /// The reason, in words.
        reason: String,
        /// The driver's error; `None` if it is not an error of the driver.
        driver: Option<DriverError>,
    },
}

/// An error of the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverError {
    /// Its number, for example 700.
    pub code: u32,
    /// Its name, for example `CUDA_ERROR_ILLEGAL_ADDRESS`.
    pub name: String,
}

impl Error {
    /// An error that does not come from the driver.
    #[cfg_attr(not(feature = "emulate"), expect(dead_code, reason = "only the CPU that stands in for a GPU uses it"))]
    pub(crate) fn launch(kernel: &'static str, reason: impl Into<String>) -> Self {
        Error::Launch { kernel, reason: reason.into(), driver: None }
    }

    /// An error of the driver. A launch returns before its kernel has run, so a later operation reports the kernel's fault.
    #[cfg_attr(not(any(feature = "cuda", feature = "emulate")), expect(dead_code, reason = "a build without a driver"))]
    pub(crate) fn driver(kernel: &'static str, driver: DriverError, text: &str) -> Self {
        let is_earlier = matches!(driver.code, 700 | 702 | 710 | 714..=719) && !is_synced();
        let hint = if is_earlier {
            "; caused by a kernel that was launched earlier: set KVTIDE_CUDA_SYNC=1 to see its name"
        } else {
            ""
        };
        let reason = format!("{text} ({}, {}){hint}", driver.name, driver.code);
        Error::Launch { kernel, reason, driver: Some(driver) }
    }
}
