//! Devices, and what this build can do with them.

use kvtide_tensor::{DType, device};
use napi::{Env, Result};
use napi_derive::napi;

use crate::border::handle::guard;

/// What `kvtide doctor` prints of the binary.
#[napi(object)]
pub struct NativeBuildInfo {
    pub version: String,
    pub target: String,
    pub cpu_features: Vec<String>,
}

/// This binary.
#[napi]
pub fn build_info() -> NativeBuildInfo {
    NativeBuildInfo {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        target: format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS),
        cpu_features: cpu_features(),
    }
}

/// The full name of a device; one that cannot be used is refused with the reason.
#[napi]
pub fn device_name(env: &Env, name: String) -> Result<String> {
    guard(env, || Ok(kvtide_tensor::device_name(&device(&name)?)))
}

/// The full name of a device that need not be one of this machine.
#[napi]
pub fn full_device_name(env: &Env, name: String) -> Result<String> {
    guard(env, || Ok(kvtide_tensor::full_name(&name)?))
}

/// The names of all dtypes, in the order of their numbers.
#[napi]
pub fn dtype_names() -> Vec<&'static str> {
    DType::ALL.iter().map(|dtype| dtype.name()).collect()
}

#[cfg(target_arch = "x86_64")]
fn cpu_features() -> Vec<String> {
    let found = [
        ("avx512f", is_x86_feature_detected!("avx512f")),
        ("avx2", is_x86_feature_detected!("avx2")),
        ("fma", is_x86_feature_detected!("fma")),
        ("f16c", is_x86_feature_detected!("f16c")),
        ("sse4.2", is_x86_feature_detected!("sse4.2")),
    ];
    found.into_iter().filter(|(_, found)| *found).map(|(name, _)| name.to_owned()).collect()
}

#[cfg(target_arch = "aarch64")]
fn cpu_features() -> Vec<String> {
    vec!["neon".to_owned()]
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn cpu_features() -> Vec<String> {
    Vec::new()
}
