//! Process-wide values: memory and its limit, threads, devices and the build.

use kvtide_tensor::runtime::{Budget, Kernels, device};
use kvtide_tensor::{DType, Stats};
use napi::{Env, Result};
use napi_derive::napi;

use crate::border::argument::{count, whole};
use crate::border::handle::guard;
use crate::border::refusal::number;

/// Native memory of the process.
#[napi(object)]
pub struct NativeMemoryStats {
    pub used_bytes: f64,
    /// Bytes of `used_bytes` that only views and snapshots still hold.
    pub held_bytes: f64,
    pub limit_bytes: f64,
}

#[napi]
pub fn set_memory_limit(env: &Env, bytes: f64) -> Result<()> {
    guard(env, || {
        Budget::process().set_limit(whole("bytes", bytes)?);
        Ok(())
    })
}

#[napi]
pub fn memory_stats(env: &Env) -> Result<NativeMemoryStats> {
    guard(env, || {
        let budget = Budget::process();
        Ok(NativeMemoryStats {
            used_bytes: number(budget.used()),
            held_bytes: number(budget.held()),
            limit_bytes: number(budget.limit()),
        })
    })
}

/// Memory in use, and how often existing rows were copied.
#[napi(object)]
pub struct NativeStats {
    pub buffer_bytes: f64,
    pub held_bytes: f64,
    pub used_bytes: f64,
    pub limit_bytes: f64,
    pub growths: f64,
    pub compactions: f64,
    pub copies_on_write: f64,
    pub copied_bytes: f64,
}

impl From<Stats> for NativeStats {
    fn from(stats: Stats) -> Self {
        NativeStats {
            buffer_bytes: number(stats.buffer_bytes),
            held_bytes: number(stats.held_bytes),
            used_bytes: number(stats.used_bytes),
            limit_bytes: number(stats.limit_bytes),
            growths: number(stats.growths),
            compactions: number(stats.compactions),
            copies_on_write: number(stats.copies_on_write),
            copied_bytes: number(stats.copied_bytes),
        }
    }
}

/// Sets how many threads large operations use from now on.
#[napi]
pub fn set_threads(env: &Env, threads: f64) -> Result<()> {
    guard(env, || Ok(kvtide_tensor::runtime::set_threads(count("n", threads)? as usize)?))
}

#[napi]
pub fn threads(env: &Env) -> Result<f64> {
    guard(env, || Ok(kvtide_tensor::runtime::threads()? as f64))
}

/// The name of the kernel variant that runs on this CPU.
#[napi]
pub fn kernels(env: &Env) -> Result<&'static str> {
    guard(env, || Ok(Kernels::current()?.name()))
}

/// Build facts that `kvtide doctor` prints.
#[napi(object)]
pub struct NativeBuildInfo {
    pub version: String,
    pub target: String,
    pub cpu_features: Vec<String>,
}

#[napi(catch_unwind)]
pub fn build_info() -> NativeBuildInfo {
    NativeBuildInfo {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        target: format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS),
        cpu_features: cpu_features(),
    }
}

/// The full name of a device. If the device cannot be used, the error says why.
#[napi]
pub fn device_name(env: &Env, name: String) -> Result<String> {
    guard(env, || Ok(kvtide_tensor::runtime::device_name(&device(&name)?)))
}

/// The full name of a device, even if this machine does not have it.
#[napi]
pub fn full_device_name(env: &Env, name: String) -> Result<String> {
    guard(env, || Ok(kvtide_tensor::runtime::full_name(&name)?))
}

/// The names of all dtypes, in the order of their numbers.
#[napi(catch_unwind)]
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
