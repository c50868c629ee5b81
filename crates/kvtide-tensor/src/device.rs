//! Which device a cache lives on.

use candle_core::{Device, DeviceLocation};

use crate::error::{Error, Result};
use crate::kernels::Kernels;
use crate::threads::threads;

/// The device of this name: `cpu`, `auto`, `cuda`, `cuda:N`, `metal`.
///
/// This build has the CPU alone; `auto` is the best device there is.
pub fn device(name: &str) -> Result<Device> {
    let unavailable =
        |reason: &str| Err(Error::DeviceUnavailable { device: name.to_owned(), reason: reason.to_owned() });
    match name {
        "cpu" | "auto" => Ok(Device::Cpu),
        "metal" => unavailable("this build has no Metal support"),
        _ if is_cuda(name) => {
            unavailable("this build has no CUDA support; install it with `npm install kvtide-cuda-linux-x64-gnu`")
        }
        _ => Err(Error::argument("device", name, "one of cpu, cuda, cuda:N, metal, auto")),
    }
}

/// The public name of a device.
#[must_use]
pub fn device_name(device: &Device) -> String {
    match device.location() {
        DeviceLocation::Cpu => "cpu".to_owned(),
        DeviceLocation::Cuda { gpu_id } => format!("cuda:{gpu_id}"),
        DeviceLocation::Metal { .. } => "metal".to_owned(),
    }
}

/// Refuses a device that this build has no kernels for, and kernels that the environment asks for in vain.
pub(crate) fn check_cpu(device: &Device) -> Result<()> {
    if device.is_cpu() {
        Kernels::current()?;
        threads()?;
        return Ok(());
    }
    let reason = "this build has the CPU alone".to_owned();
    Err(Error::DeviceUnavailable { device: device_name(device), reason })
}

fn is_cuda(name: &str) -> bool {
    match name.strip_prefix("cuda") {
        Some("") => true,
        Some(index) => index
            .strip_prefix(':')
            .is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvtide_core::Code;

    #[test]
    fn names_are_known_or_refused() {
        assert!(device("cpu").is_ok());
        assert!(device("auto").is_ok());
        for name in ["cuda", "cuda:0", "cuda:17", "metal"] {
            assert_eq!(device(name).unwrap_err().code(), Code::DeviceUnavailable, "{name}");
        }
        for name in ["", "CPU", "cuda:", "cuda:x", "cuda0", "gpu"] {
            assert_eq!(device(name).unwrap_err().code(), Code::InvalidArgument, "{name}");
        }
    }
}
