//! Checks of a GPU before candle opens it, so that the error says what to do.
//!
//! ```text
//! libraries   the driver's, cuBLAS, cuRAND: not found
//! driver      older than the PTX of this build; no GPU
//! index       higher than the number of GPUs
//! GPU         older than the PTX's target
//! ```
#![expect(unsafe_code, reason = "the driver and the system's loader are C")]

use candle_core::cuda_backend::cudarc::driver::CudaStream;
use candle_core::cuda_backend::cudarc::driver::result::{self, DriverError};
use candle_core::cuda_backend::cudarc::driver::sys::{self, CUdevice_attribute, CUmemPool_attribute, CUresult};
use candle_core::cuda_backend::kernels;

use super::super::ptx::{self, CudaVersion};

/// Libraries that candle opens with a device: their purpose and possible names, the newest first.
const LIBRARIES: [(&str, &[&str]); 3] = [
    ("NVIDIA driver", &["libcuda.so.1"]),
    ("cuBLAS", &["libcublas.so.13", "libcublas.so.12"]),
    ("cuRAND", &["libcurand.so.10"]),
];

/// Fails with the reason if the GPU of this index cannot run this build.
pub(super) fn check(index: usize) -> Result<(), String> {
    for (what, names) in LIBRARIES {
        if !names.iter().any(|name| is_found(name)) {
            return Err(format!("no {what}: {} not found", names[0]));
        }
    }
    check_version(version()?, ptx::cuda_needed(kernels::AFFINE.ptx()))?;
    let count = count()?;
    if index >= count {
        return Err(too_high(count));
    }
    let capability = capability(index).map_err(|error| named("cannot read the GPU's compute capability", error))?;
    check_target(capability, ptx::target(kernels::AFFINE.ptx()))
}

fn check_version(found: CudaVersion, needed: Option<CudaVersion>) -> Result<(), String> {
    match needed {
        Some(needed) if found < needed => {
            Err(format!("the driver is for CUDA {found}, this build needs {needed} or later; update the driver"))
        }
        _ => Ok(()),
    }
}

fn check_target(capability: u32, target: Option<ptx::Target>) -> Result<(), String> {
    match target {
        Some(target) if !target.runs_on(capability) => {
            let (major, minor) = (capability / 10, capability % 10);
            Err(format!("the GPU has compute capability {major}.{minor}, this build is for {target}"))
        }
        _ => Ok(()),
    }
}

fn too_high(count: usize) -> String {
    match count {
        0 => "the driver finds no GPU".to_owned(),
        1 => "there is one GPU, cuda:0".to_owned(),
        _ => format!("there are {count} GPUs, cuda:0 to cuda:{}", count - 1),
    }
}

/// The newest CUDA version that the driver supports.
fn version() -> Result<CudaVersion, String> {
    let mut number = 0;
    // SAFETY: the driver writes one number there; this call is allowed before the driver is initialised.
    let result = unsafe { sys::cuDriverGetVersion(&raw mut number) }.result();
    result.map_err(|error| named("cannot read the driver's version", error))?;
    Ok(CudaVersion::from_driver(u32::try_from(number).unwrap_or(0)))
}

/// Initialises the driver and returns the number of GPUs.
fn count() -> Result<usize, String> {
    match result::init().and_then(|()| result::device::get_count()) {
        Ok(count) => Ok(usize::try_from(count).unwrap_or(0)),
        Err(DriverError(CUresult::CUDA_ERROR_NO_DEVICE)) => Ok(0),
        Err(error) => Err(named("the driver does not start", error)),
    }
}

/// The compute capability times ten. The driver must be initialised.
fn capability(index: usize) -> Result<u32, DriverError> {
    let device = result::device::get(i32::try_from(index).unwrap_or(i32::MAX))?;
    let asked = [
        CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
        CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
    ];
    let mut digits = [0; 2];
    for (digit, attribute) in digits.iter_mut().zip(asked) {
        // SAFETY: the driver returned this device.
        let value = unsafe { result::device::get_attribute(device, attribute) }?;
        *digit = u32::try_from(value).unwrap_or(0);
    }
    Ok(10 * digits[0] + digits[1])
}

/// Keeps freed memory in the process. Otherwise each synchronisation returns it to the driver, and the next attention call
/// has to allocate its scratch memory again. If the driver refuses, calls cost more and nothing else changes.
pub(super) fn keep_freed(stream: &CudaStream) {
    let mut most = u64::MAX;
    // SAFETY: the pool belongs to the device for as long as the process runs, and the attribute is a 64-bit number.
    let _refused = unsafe {
        result::device::get_default_mem_pool(stream.context().cu_device()).and_then(|pool| {
            let attribute = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
            result::mem_pool::set_attribute(pool, attribute, (&raw mut most).cast())
        })
    };
}

/// Formats a failure with the driver's name for it.
fn named(what: &str, error: DriverError) -> String {
    match error.error_name() {
        Ok(name) => format!("{what}: {}", name.to_string_lossy()),
        Err(_) => format!("{what}: {error}"),
    }
}

/// True if the system's loader finds a library of this name. A library that is found stays loaded, because it is about to be
/// used.
#[cfg(target_os = "linux")]
fn is_found(name: &str) -> bool {
    let Ok(name) = std::ffi::CString::new(name) else { return false };
    // SAFETY: the name ends with a zero. These libraries may be loaded in any thread.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    !handle.is_null()
}

/// On other systems, the addon cannot load without these libraries.
#[cfg(not(target_os = "linux"))]
fn is_found(_name: &str) -> bool {
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_driver_is_refused_with_both_versions() {
        let [old, new] = [12_040, 13_000].map(CudaVersion::from_driver);
        let reason = check_version(old, Some(new)).unwrap_err();
        assert!(reason.contains("CUDA 12.4") && reason.contains("needs 13.0"), "{reason}");
        for (found, needed) in [(new, Some(new)), (new, Some(old)), (old, None)] {
            assert_eq!(check_version(found, needed), Ok(()));
        }
    }

    #[test]
    fn an_old_gpu_is_refused_with_what_the_build_is_for() {
        let reason = check_target(75, Some(ptx::Target::From(80))).unwrap_err();
        assert!(reason.contains("7.5") && reason.contains("8.0 and later"), "{reason}");
        assert_eq!(check_target(90, Some(ptx::Target::From(80))), Ok(()));
        assert_eq!(check_target(75, None), Ok(()));
    }

    #[test]
    fn too_high_an_index_says_how_many_there_are() {
        let said = [0, 1, 8].map(too_high);
        assert_eq!(said, ["the driver finds no GPU", "there is one GPU, cuda:0", "there are 8 GPUs, cuda:0 to cuda:7"]);
    }

    #[test]
    fn the_kernels_of_this_build_say_what_they_need() {
        assert!(ptx::cuda_needed(kernels::AFFINE.ptx()).is_some());
        assert!(ptx::target(kernels::AFFINE.ptx()).is_some());
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_library_is_found_or_not() {
        assert!(is_found("libc.so.6"));
        assert!(!is_found("libkvtide-is-not-here.so"));
        assert!(!is_found("a\0b"));
    }
}
