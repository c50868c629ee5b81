//! Launches on the CPU: the same kernels, thread by thread; counted, and made to fail where a test asks for it.
#![expect(unsafe_code, reason = "kernels take addresses; their launchers have checked them")]

use std::cell::Cell;

use crate::error::{Error, Result};
use crate::kernel::{Grid, Kernel};
use crate::span::Span;

thread_local! {
    static LAUNCHES: Cell<u32> = const { Cell::new(0) };
    static FAILING: Cell<Option<u32>> = const { Cell::new(None) };
    static FREE: Cell<u64> = const { Cell::new(u64::MAX) };
}

/// What this thread does on the CPU that stands in for a GPU: for tests.
#[derive(Debug)]
pub struct Emulation;

impl Emulation {
    /// Launches so far, those of replays included.
    #[must_use]
    pub fn launches() -> u32 {
        LAUNCHES.get()
    }

    /// Makes one operation fail, once so many more have succeeded: a launch, a copy to or from the device, or an allocation for the
    /// length of a call. Nothing: none any more. Answers how many were left of what was asked before; nothing where it has failed.
    pub fn fail_after(operations: Option<u32>) -> Option<u32> {
        FAILING.replace(operations)
    }

    /// Memory that each allocation for the length of a call finds free; nothing: as much as it wants.
    pub fn limit_memory(bytes: Option<u64>) {
        FREE.set(bytes.unwrap_or(u64::MAX));
    }
}

/// Counts an operation; true where this is the one to fail.
fn fails() -> bool {
    let left = FAILING.get();
    FAILING.set(left.and_then(|left| left.checked_sub(1)));
    left == Some(0)
}

/// An operation that is no launch.
pub(crate) fn operate(what: &'static str) -> Result<()> {
    if fails() { Err(Error::Launch { kernel: what, reason: FAILED.to_owned() }) } else { Ok(()) }
}

/// An allocation.
pub(crate) fn allocate(bytes: usize) -> Result<()> {
    let (bytes, free) = (bytes as u64, FREE.get());
    let refused = |free| Err(Error::OutOfMemory { bytes, free, total: free });
    if fails() {
        return refused(0);
    }
    if bytes > free { refused(free) } else { Ok(()) }
}

/// Why it failed.
const FAILED: &str = "a test asked for it";

/// Copies bytes to the start of a span.
pub(crate) fn upload(bytes: &[u8], target: Span<'_>) {
    let start = std::ptr::with_exposed_provenance_mut(target.address() as usize);
    // SAFETY: the span has as many bytes and may be written to, both checked by the caller, and nobody else has it.
    unsafe { std::slice::from_raw_parts_mut(start, bytes.len()) }.copy_from_slice(bytes);
}

/// Copies the start of a span.
pub(crate) fn download(source: Span<'_>, out: &mut [u8]) {
    let start = std::ptr::with_exposed_provenance(source.address() as usize);
    // SAFETY: the span has as many bytes, checked by the caller, and nobody writes to what is borrowed.
    out.copy_from_slice(unsafe { std::slice::from_raw_parts(start, out.len()) });
}

/// Runs a grid to its end. The order of its threads differs from launch to launch, alike in each run of a program.
pub(crate) fn launch(kernel: &'static Kernel, grid: Grid, args: &[u8]) -> Result<()> {
    let seed = LAUNCHES.get().wrapping_add(1);
    LAUNCHES.set(seed);
    if fails() {
        return Err(Error::Launch { kernel: kernel.name, reason: FAILED.to_owned() });
    }
    let grid = grid.seeded(seed.wrapping_mul(0x9e37_79b9));
    // SAFETY: the entry is that of a kernel that takes arguments of this type, and the launcher that filled them has checked that
    // they stay inside spans that are borrowed.
    let outcome = unsafe { (kernel.emulated)(&raw const grid, args.as_ptr().cast()) };
    let reason = match outcome {
        0 => return Ok(()),
        1 => return Err(Error::OutOfMemory { bytes: grid.shared_bytes.into(), free: 0, total: 0 }),
        2 => "its threads wait for each other",
        _ => "a block has more threads than it takes",
    };
    Err(Error::Launch { kernel: kernel.name, reason: reason.to_owned() })
}
