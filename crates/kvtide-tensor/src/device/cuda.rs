//! NVIDIA's GPUs: each opened once for the process, and only where nothing stands against it.
//!
//! ```text
//! open(index)  a fork of the process that used CUDA?    refused: CUDA cannot be used in it
//!              open already?                            that device
//!              libraries, driver, index, GPU            refused with the reason (driver.rs)
//!              else                                     a device with a stream of its own, kept for ever
//! ```
//!
//! candle's per-thread streams would let work of two threads pass each other; here all work of a GPU goes to one stream, in
//! the order in which it was given. candle and cudarc panic where they meet what they did not expect: that is caught.
//! O(1) for a GPU that is open.
#![expect(unsafe_code, reason = "turning off candle's bookkeeping of streams is marked unsafe")]

use std::any::Any;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use candle_core::Device;

use crate::base::lock::lock;

mod driver;

/// Opened GPUs by their index.
static OPENED: Mutex<Option<HashMap<usize, Device>>> = Mutex::new(None);

/// The process that used CUDA first, or zero. A fork has the same memory and another number.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// The GPU of this index, or why it cannot be used.
pub(super) fn open(index: usize) -> Result<Device, String> {
    claim(&OWNER, process::id())?;
    let mut opened = lock(&OPENED);
    let opened = opened.get_or_insert_default();
    if let Some(device) = opened.get(&index) {
        return Ok(device.clone());
    }
    let device = catch_unwind(AssertUnwindSafe(|| open_new(index))).unwrap_or_else(|panic| Err(panicked(&*panic)))?;
    opened.insert(index, device.clone());
    Ok(device)
}

/// Keeps what candle's operations upload beside their tensors, until it is dropped.
#[cfg(feature = "captured-steps")]
pub(super) fn keep_uploads(device: &Device) -> impl Sized + use<> {
    match device {
        Device::Cuda(device) => Some(device.enable_cuda_graph_htod_cache()),
        _ => None,
    }
}

/// Makes `process` the one that uses CUDA; refused when it was forked from the one that does.
fn claim(owner: &AtomicU32, process: u32) -> Result<(), String> {
    match owner.compare_exchange(0, process, Ordering::Relaxed, Ordering::Relaxed) {
        Err(other) if other != process => Err(format!(
            "process {process} is a fork of process {other}, which has used CUDA: start a new process instead of forking"
        )),
        _ => Ok(()),
    }
}

fn open_new(index: usize) -> Result<Device, String> {
    driver::check(index)?;
    let device = Device::new_cuda_with_stream(index).map_err(|error| error.to_string())?;
    if let Device::Cuda(cuda) = &device {
        // SAFETY: events order the uses of a tensor by several streams. This device has one stream, there is one device for
        // each GPU in the process, and no tensor of it is given to a stream of anyone else.
        unsafe { cuda.disable_event_tracking() };
        driver::keep_freed(&cuda.cuda_stream());
    }
    Ok(device)
}

fn panicked(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("opening it failed: {}", text.unwrap_or("no reason was given"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fork_is_refused() {
        let owner = AtomicU32::new(0);
        assert_eq!(claim(&owner, 7), Ok(()));
        assert_eq!(claim(&owner, 7), Ok(()));
        let reason = claim(&owner, 8).unwrap_err();
        assert!(reason.contains("process 8 is a fork of process 7"), "{reason}");
    }

    #[test]
    fn a_panic_is_a_reason() {
        let panic = catch_unwind(|| -> () { panic!("no symbol {}", 3) }).unwrap_err();
        assert_eq!(panicked(&*panic), "opening it failed: no symbol 3");
    }

    #[test]
    fn a_gpu_is_one_device_or_refused_with_a_reason() {
        match open(0) {
            Ok(device) => {
                assert!(device.same_device(&open(0).unwrap()));
                let highest = open(usize::MAX).unwrap_err();
                assert!(highest.contains("there "), "{highest}");
            }
            Err(reason) => {
                assert!(!reason.is_empty());
                assert_eq!(open(0).unwrap_err(), reason);
            }
        }
    }
}
