//! NVIDIA GPUs: each is opened once per process, after checks that it can be used.
//!
//! ```text
//! open(index)  a fork of the process that used CUDA?    fails: CUDA cannot be used in it
//!              open already?                            returns that device
//!              libraries, driver, index, GPU            fails with the reason (driver.rs)
//!              else                                     opens a device with a stream of its own, kept for ever
//! ```
//!
//! All work of a GPU goes to one stream, in the order of the calls; with candle's per-thread streams, work of two threads
//! could overtake each other. candle and cudarc panic on unexpected results; these panics are caught. O(1) for a GPU that is
//! open.
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

/// The process that used CUDA first, or zero. A fork has a copy of this memory and another process id.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// Opens the GPU of this index, or returns the reason why it cannot be used.
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

/// Makes `process` the user of CUDA; fails if it was forked from the process that uses CUDA.
fn claim(owner: &AtomicU32, process: u32) -> Result<(), String> {
    match owner.compare_exchange(0, process, Ordering::Relaxed, Ordering::Relaxed) {
        Err(other) if other != process => Err(format!(
            "process {process} is a fork of process {other}, which has used CUDA; start a new process instead of forking"
        )),
        _ => Ok(()),
    }
}

fn open_new(index: usize) -> Result<Device, String> {
    driver::check(index)?;
    let device = Device::new_cuda_with_stream(index).map_err(|error| error.to_string())?;
    if let Device::Cuda(cuda) = &device {
        // SAFETY: events order the uses of a tensor by several streams. This device has one stream, there is one device per
        // GPU in the process, and no tensor of it is used on another stream.
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
