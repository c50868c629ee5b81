//! Metal in a build without it: every call fails.

use candle_core::Device;

/// Fails.
pub(super) fn open() -> Result<Device, String> {
    Err("this build has no Metal support".to_owned())
}
