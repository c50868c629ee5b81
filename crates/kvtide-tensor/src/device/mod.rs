//! The devices of caches.
//!
//! ```text
//! "cpu"              always
//! "cuda", "cuda:N"   cuda.rs, with the feature `cuda`; else no_cuda.rs, which says what to install
//! "metal"            metal.rs, with the feature `metal`; else no_metal.rs
//! "auto"             the first of cuda:0, metal and cpu that can be used
//! ```
//!
//! The same name gives the same device for as long as the process runs, so that all caches of a GPU share its stream. For a
//! device that is open, a call costs a map lookup. The first call for a GPU opens it, which can take a second.

use candle_core::{Device, DeviceLocation};

use crate::base::error::{Error, Result};
use crate::base::threads::threads;
use form::Form;

#[cfg_attr(not(feature = "cuda"), path = "no_cuda.rs")]
mod cuda;
pub(crate) mod edit;
pub(crate) mod form;
pub(crate) mod memory;
#[cfg_attr(not(feature = "metal"), path = "no_metal.rs")]
mod metal;
#[cfg(any(feature = "cuda", test))]
mod ptx;

/// Returns the device of this name: `cpu`, `auto`, `cuda`, `cuda:N`, `metal`.
///
/// `auto` is the first of `cuda:0`, `metal` and `cpu` that can be used.
pub fn device(name: &str) -> Result<Device> {
    let unavailable = |reason: String| Error::DeviceUnavailable { device: name.to_owned(), reason };
    match name {
        "cpu" => Ok(Device::Cpu),
        "auto" => Ok(cuda::open(0).or_else(|_| metal::open()).unwrap_or(Device::Cpu)),
        "metal" => metal::open().map_err(unavailable),
        _ => match cuda_index(name) {
            Some(index) => cuda::open(index).map_err(unavailable),
            None => Err(Error::argument("device", name, "one of cpu, cuda, cuda:N, metal, auto")),
        },
    }
}

/// The full name of a device, which this machine need not have. Fails for `auto`, whose device depends on the machine.
pub fn full_name(name: &str) -> Result<String> {
    match (name, cuda_index(name)) {
        ("cpu" | "metal", _) => Ok(name.to_owned()),
        (_, Some(index)) => Ok(format!("cuda:{index}")),
        _ => Err(Error::argument("device", name, "one of cpu, cuda, cuda:N, metal")),
    }
}

/// The public name of a device: `cpu`, `cuda:0`, `metal`.
#[must_use]
pub fn device_name(device: &Device) -> String {
    match device.location() {
        DeviceLocation::Cpu => "cpu".to_owned(),
        DeviceLocation::Cuda { gpu_id } => format!("cuda:{gpu_id}"),
        DeviceLocation::Metal { .. } => "metal".to_owned(),
    }
}

/// Fails if the environment requests kernels or threads that cannot be used.
pub(crate) fn check_kernels(device: &Device) -> Result<()> {
    if device.is_cpu() {
        Form::of_host()?;
        threads()?;
    }
    Ok(())
}

/// The index in `cuda` or `cuda:N`; the largest `usize` if it does not fit.
fn cuda_index(name: &str) -> Option<usize> {
    match name.strip_prefix("cuda")? {
        "" => Some(0),
        rest => {
            let digits = rest.strip_prefix(':')?;
            let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
            is_number.then(|| digits.parse().unwrap_or(usize::MAX))
        }
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
        for name in ["", "CPU", "cuda:", "cuda:x", "cuda0", "cuda:-1", "gpu"] {
            assert_eq!(device(name).unwrap_err().code(), Code::InvalidArgument, "{name}");
        }
    }

    #[test]
    #[cfg(not(any(feature = "cuda", feature = "metal")))]
    fn a_build_for_the_cpu_says_so() {
        assert!(device("auto").unwrap().is_cpu());
        for name in ["cuda", "cuda:0", "cuda:17", "cuda:99999999999999999999", "metal"] {
            let error = device(name).unwrap_err();
            assert_eq!(error.code(), Code::DeviceUnavailable, "{name}");
            assert!(error.to_string().contains("this build has no"), "{error}");
        }
    }

    #[test]
    fn a_name_is_full_without_the_device() {
        for (name, full) in
            [("cpu", "cpu"), ("metal", "metal"), ("cuda", "cuda:0"), ("cuda:0", "cuda:0"), ("cuda:007", "cuda:7")]
        {
            assert_eq!(full_name(name).unwrap(), full);
        }
        for name in ["", "auto", "CPU", "cuda:", "cuda:x", "gpu"] {
            assert_eq!(full_name(name).unwrap_err().code(), Code::InvalidArgument, "{name}");
        }
    }

    #[test]
    fn a_name_has_an_index() {
        let cases =
            [("cuda", Some(0)), ("cuda:0", Some(0)), ("cuda:17", Some(17)), ("cuda:007", Some(7)), ("cud", None)];
        for (name, index) in cases {
            assert_eq!(cuda_index(name), index, "{name}");
        }
        assert_eq!(cuda_index("cuda:99999999999999999999"), Some(usize::MAX));
    }

    #[test]
    fn devices_have_names() {
        assert_eq!(device_name(&Device::Cpu), "cpu");
    }
}
