//! Launches on the CPU: the same kernels, thread by thread, with counters and injected failures for tests.
//!
//! A kernel's fault is reported by all later operations, not by its launch, as on a GPU.
#![expect(unsafe_code, reason = "kernels take addresses; their launchers have checked them")]

use std::cell::Cell;

use crate::error::{DriverError, Error, Result};
use crate::kernel::{Grid, Kernel};
use crate::span::Span;
use crate::synced;

thread_local! {
    static LAUNCHES: Cell<u32> = const { Cell::new(0) };
    static FAILING: Cell<Option<u32>> = const { Cell::new(None) };
    static FREE: Cell<u64> = const { Cell::new(u64::MAX) };
    /// The number of launches until one has a fault; and whether one has had it.
    static FAULTING: Cell<Option<u32>> = const { Cell::new(None) };
    static HAS_FAULT: Cell<bool> = const { Cell::new(false) };
}

/// Controls this thread's work on the CPU that stands in for a GPU, for tests.
#[derive(Debug)]
pub struct Emulation;

impl Emulation {
    /// The number of launches so far.
    #[must_use]
    pub fn launches() -> u32 {
        LAUNCHES.get()
    }

    /// Makes one operation fail after `operations` more have succeeded: a launch, a copy to or from the device, or an
    /// allocation for the duration of a call. `None` makes none fail. Returns the rest of the previous count; `None` if that
    /// failure has happened.
    pub fn fail_after(operations: Option<u32>) -> Option<u32> {
        FAILING.replace(operations)
    }

    /// Gives a kernel an illegal memory access after `launches` more have succeeded: its launch succeeds, and every later
    /// operation fails. `None` resets the device.
    pub fn fault_after(launches: Option<u32>) {
        FAULTING.set(launches);
        HAS_FAULT.set(false);
    }

    /// Sets whether launches wait for their kernels, as with `KVTIDE_CUDA_SYNC`; `None` follows that variable.
    pub fn synchronise(each_launch: Option<bool>) {
        synced::choose(each_launch);
    }

    /// Sets the free memory that each allocation for the duration of a call finds; `None` for no limit.
    pub fn limit_memory(bytes: Option<u64>) {
        FREE.set(bytes.unwrap_or(u64::MAX));
    }
}

/// Waits for earlier launches, and reports a fault.
pub(crate) fn synchronize(what: &'static str) -> Result<()> {
    check_fault(what)
}

/// Fails if a kernel has had a fault, like every operation after it.
fn check_fault(what: &'static str) -> Result<()> {
    if !HAS_FAULT.get() {
        return Ok(());
    }
    let driver = DriverError { code: 700, name: "CUDA_ERROR_ILLEGAL_ADDRESS".to_owned() };
    Err(Error::driver(what, driver, "an illegal memory access was encountered"))
}

/// Counts a launch; true if it is the one with a fault.
fn faults() -> bool {
    let left = FAULTING.get();
    FAULTING.set(left.and_then(|left| left.checked_sub(1)));
    left == Some(0)
}

/// Counts an operation; true if it is the one to fail.
fn fails() -> bool {
    let left = FAILING.get();
    FAILING.set(left.and_then(|left| left.checked_sub(1)));
    left == Some(0)
}

/// Counts an operation that is not a launch.
pub(crate) fn operate(what: &'static str) -> Result<()> {
    check_fault(what)?;
    if fails() { Err(Error::launch(what, FAILED)) } else { Ok(()) }
}

/// Counts an allocation.
pub(crate) fn allocate(bytes: usize) -> Result<()> {
    check_fault("an allocation of device memory")?;
    let (bytes, free) = (bytes as u64, FREE.get());
    let refused = |free| Err(Error::OutOfMemory { bytes, free, total: free });
    if fails() {
        return refused(0);
    }
    if bytes > free { refused(free) } else { Ok(()) }
}

/// The reason of an injected failure.
const FAILED: &str = "injected by a test";

/// Copies bytes to the start of a span.
pub(crate) fn upload(bytes: &[u8], target: Span<'_>) {
    let start = std::ptr::with_exposed_provenance_mut(target.address() as usize);
    // SAFETY: the span has as many bytes and is writable, both checked by the caller, and it is not used elsewhere.
    unsafe { std::slice::from_raw_parts_mut(start, bytes.len()) }.copy_from_slice(bytes);
}

/// Copies the start of a span to host memory.
pub(crate) fn download(source: Span<'_>, out: &mut [u8]) {
    let start = std::ptr::with_exposed_provenance(source.address() as usize);
    // SAFETY: the span has as many bytes, checked by the caller, and borrowed memory is not written.
    out.copy_from_slice(unsafe { std::slice::from_raw_parts(start, out.len()) });
}

/// Runs a grid to its end. The order of its threads differs between launches, but is the same in each run of a program.
pub(crate) fn launch(kernel: &'static Kernel, grid: Grid, args: &[u8]) -> Result<()> {
    let seed = LAUNCHES.get().wrapping_add(1);
    LAUNCHES.set(seed);
    check_fault(kernel.name)?;
    if fails() {
        return Err(Error::launch(kernel.name, FAILED));
    }
    if faults() {
        HAS_FAULT.set(true);
        return Ok(());
    }
    let grid = grid.seeded(seed.wrapping_mul(0x9e37_79b9));
    // SAFETY: the entry belongs to a kernel with arguments of this type, and the launcher has checked that its accesses stay
    // inside borrowed spans.
    let outcome = unsafe { (kernel.emulated)(&raw const grid, args.as_ptr().cast()) };
    let reason = match outcome {
        0 => return Ok(()),
        1 => return Err(Error::OutOfMemory { bytes: grid.shared_bytes.into(), free: 0, total: 0 }),
        2 => "its threads wait for each other (deadlock)",
        _ => "its block has too many threads",
    };
    Err(Error::launch(kernel.name, reason))
}
