//! CUDA in a build without it: what to install.

use candle_core::Device;

/// Refuses every GPU.
pub(super) fn open(_index: usize) -> Result<Device, String> {
    Err("this build has no CUDA support; install it with `npm install kvtide-cuda-linux-x64-gnu`".to_owned())
}

/// Nothing is uploaded.
pub(super) fn keep_uploads(_device: &Device) {}
