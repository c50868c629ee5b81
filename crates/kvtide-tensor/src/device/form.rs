//! Selects the implementation of operations by device. Every operation asks this module and nothing else.
//!
//! On the CPU, the widest vector instructions of the machine are used, detected once. `KVTIDE_KERNELS` names another
//! implementation: `portable` uses candle's tensor operations alone, as on a device without kernels. `opaque` does the same
//! and treats the CPU's memory as device memory that the host cannot address: data is copied to and from it, and tensors
//! have no `data`. [`with_kernels`] chooses for one thread and one call; tests compare the implementations with it.

use std::cell::Cell;
use std::sync::OnceLock;

use candle_core::Device;
use kvtide_cuda::Stream;

use crate::base::error::{Error, Result};

/// The implementations of an operation.
#[derive(Clone, Debug)]
pub(crate) enum Form {
    /// On bytes that the host can address, with these vector instructions.
    Bytes(Kernels),
    /// With candle's operations alone, on a device without kernels.
    Portable,
    /// With the kernels of a GPU.
    #[cfg_attr(
        not(any(feature = "cuda", feature = "emulate")),
        expect(dead_code, reason = "a build without such kernels takes the other forms")
    )]
    Launched(Stream),
}

impl Form {
    /// The implementation for memory of this device.
    pub fn of(device: &Device) -> Result<Form> {
        match device {
            Device::Cpu if Kernels::current()? == Kernels::Opaque => Ok(Form::Portable),
            Device::Cpu => Form::of_host(),
            #[cfg(feature = "cuda")]
            Device::Cuda(device) => Ok(Form::Launched(Stream::gpu(device))),
            _ => Ok(Form::Portable),
        }
    }

    /// The implementation for memory that the host can address.
    pub fn of_host() -> Result<Form> {
        Ok(match Kernels::current()? {
            #[cfg(feature = "emulate")]
            Kernels::Emulated => Form::Launched(Stream::emulated()),
            Kernels::Portable => Form::Portable,
            Kernels::Opaque => Form::Bytes(widest()),
            kernels => Form::Bytes(kernels),
        })
    }
}

/// True if the host can address the memory of a device, so that pointers to it may be handed out.
pub(crate) fn is_seen(device: &Device) -> bool {
    device.is_cpu() && !matches!(Kernels::current(), Ok(Kernels::Opaque))
}

/// A set of kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kernels {
    /// The GPU kernels, run on the CPU thread by thread, for tests.
    #[cfg(feature = "emulate")]
    Emulated,
    /// candle's tensor operations alone, on memory that is treated as not addressable by the host, for tests.
    Opaque,
    /// candle's tensor operations alone.
    Portable,
    /// 128-bit vectors of 64-bit ARM.
    Neon,
    /// 256-bit vectors with fused multiply-add and half floats.
    Avx2,
    /// 512-bit vectors.
    Avx512,
}

/// The environment variable that names the kernels to use.
const VARIABLE: &str = "KVTIDE_KERNELS";

thread_local! {
    static CHOSEN: Cell<Option<Kernels>> = const { Cell::new(None) };
}

impl Kernels {
    /// All kernels, the widest last.
    pub const ALL: &[Kernels] = &[
        #[cfg(feature = "emulate")]
        Kernels::Emulated,
        Kernels::Opaque,
        Kernels::Portable,
        Kernels::Neon,
        Kernels::Avx2,
        Kernels::Avx512,
    ];

    /// The public name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            #[cfg(feature = "emulate")]
            Kernels::Emulated => "emulated",
            Kernels::Opaque => "opaque",
            Kernels::Portable => "portable",
            Kernels::Neon => "neon",
            Kernels::Avx2 => "avx2",
            Kernels::Avx512 => "avx512",
        }
    }

    /// True if this machine can run them.
    #[must_use]
    pub(crate) fn is_supported(self) -> bool {
        match self {
            #[cfg(feature = "emulate")]
            Kernels::Emulated => true,
            Kernels::Opaque | Kernels::Portable => true,
            Kernels::Neon => cfg!(target_arch = "aarch64"),
            #[cfg(target_arch = "x86_64")]
            Kernels::Avx2 => {
                is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Kernels::Avx512 => {
                Kernels::Avx2.is_supported()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
            }
            #[cfg(not(target_arch = "x86_64"))]
            Kernels::Avx2 | Kernels::Avx512 => false,
        }
    }

    /// The kernels that this machine can run, the widest last; emulated ones, which are slow, only where `KVTIDE_KERNELS` names them.
    pub fn supported() -> impl Iterator<Item = Kernels> {
        Kernels::ALL.iter().copied().filter(|form| form.is_supported() && !form.is_unnamed_emulation())
    }

    #[cfg(feature = "emulate")]
    fn is_unnamed_emulation(self) -> bool {
        self == Kernels::Emulated && std::env::var_os(VARIABLE).is_none_or(|name| name != "emulated")
    }

    #[cfg(not(feature = "emulate"))]
    fn is_unnamed_emulation(self) -> bool {
        false
    }

    /// The kernels in use: those chosen for this thread, else those that `KVTIDE_KERNELS` names, else the widest.
    pub fn current() -> Result<Kernels> {
        static NAMED: OnceLock<std::result::Result<Kernels, String>> = OnceLock::new();
        if let Some(chosen) = CHOSEN.get() {
            return Ok(chosen);
        }
        let named = NAMED.get_or_init(|| match std::env::var_os(VARIABLE) {
            None => Ok(widest()),
            Some(name) => {
                let name = name.to_string_lossy().into_owned();
                if name.is_empty() || name == "auto" {
                    return Ok(widest());
                }
                Kernels::supported().find(|form| form.name() == name).ok_or(name)
            }
        });
        named.as_ref().copied().map_err(|name| {
            let names: Vec<_> = Kernels::supported().map(Kernels::name).collect();
            Error::argument(VARIABLE, name.as_str(), format!("auto or one of {} on this machine", names.join(", ")))
        })
    }
}

impl std::fmt::Display for Kernels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

fn widest() -> Kernels {
    Kernels::supported().last().unwrap_or(Kernels::Portable)
}

/// Runs `work` with these kernels on this thread; fails if the machine cannot run them.
pub fn with_kernels<T>(kernels: Kernels, work: impl FnOnce() -> T) -> Result<T> {
    struct Restore(Option<Kernels>);
    impl Drop for Restore {
        fn drop(&mut self) {
            CHOSEN.set(self.0);
        }
    }
    if !kernels.is_supported() {
        return Err(Error::argument("kernels", kernels.name(), "kernels that this machine can run"));
    }
    let _restore = Restore(CHOSEN.replace(Some(kernels)));
    Ok(work())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_holds_for_its_call() {
        let before = Kernels::current().unwrap();
        with_kernels(Kernels::Portable, || assert_eq!(Kernels::current().unwrap(), Kernels::Portable)).unwrap();
        assert_eq!(Kernels::current().unwrap(), before);
    }

    #[test]
    fn what_the_machine_lacks_is_refused() {
        for &kernels in Kernels::ALL {
            assert_eq!(with_kernels(kernels, || ()).is_ok(), kernels.is_supported(), "{kernels}");
        }
    }
}
