//! CUDA in a build without it: what to install.

use candle_core::Device;

/// Whether there is an addon with CUDA for this system.
const EXISTS: bool = cfg!(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu"));

const INSTALL: &str = concat!(
    "this build has no CUDA support; install it with `npm install kvtide-cuda-linux-x64-gnu@",
    env!("CARGO_PKG_VERSION"),
    "`"
);

/// Refuses every GPU.
pub(super) fn open(_index: usize) -> Result<Device, String> {
    Err(if EXISTS { INSTALL } else { "this build has no CUDA support, and there is none for this system" }.to_owned())
}

/// Nothing is uploaded.
#[cfg(feature = "captured-steps")]
pub(super) fn keep_uploads(_device: &Device) {}
