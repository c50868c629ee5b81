//! CUDA in a build without it: every call fails and says what to install.

use candle_core::Device;

/// True if there is an addon with CUDA for this system.
const EXISTS: bool = cfg!(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu"));

const INSTALL: &str = concat!(
    "this build has no CUDA support; install it with `npm install kvtide-cuda-linux-x64-gnu@",
    env!("CARGO_PKG_VERSION"),
    "`"
);

/// Fails for every GPU.
pub(super) fn open(_index: usize) -> Result<Device, String> {
    Err(if EXISTS { INSTALL } else { "this build has no CUDA support, and there is no CUDA build for this system" }
        .to_owned())
}
