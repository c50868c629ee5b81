//! How an operation runs where its memory lies.

use candle_core::Device;
use kvtide_cuda::Stream;

use crate::base::error::Result;
use crate::kernels::Kernels;

/// The forms that an operation has.
#[derive(Clone, Debug)]
pub(crate) enum Form {
    /// On bytes that the host sees, with its widest vectors.
    Bytes,
    /// In candle's operations alone: a device without kernels of its own.
    Portable,
    /// By kernels of a GPU.
    #[cfg_attr(
        not(any(feature = "cuda", feature = "emulate")),
        expect(dead_code, reason = "a build without such kernels takes the other forms")
    )]
    Launched(Stream),
}

impl Form {
    /// The form for memory of this device.
    pub fn of(device: &Device) -> Result<Form> {
        match device {
            Device::Cpu => Ok(match Kernels::current()? {
                #[cfg(feature = "emulate")]
                Kernels::Emulated => Form::Launched(Stream::emulated()),
                Kernels::Portable => Form::Portable,
                _ => Form::Bytes,
            }),
            #[cfg(feature = "cuda")]
            Device::Cuda(device) => Ok(Form::Launched(Stream::gpu(device))),
            _ => Ok(Form::Portable),
        }
    }
}
