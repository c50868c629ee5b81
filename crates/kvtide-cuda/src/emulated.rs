//! Launches on the CPU: the same kernels, thread by thread; counted, and made to fail where a test asks for it.
//!
//! There is one stream for the process, as a GPU has one: while a thread captures it, whatever any thread launches is recorded, and
//! whatever else is done to it breaks the capture. A fault of a kernel is told by the next operation, not by the launch, and by all behind
//! it, as a GPU's is.
#![expect(unsafe_code, reason = "kernels take addresses; their launchers have checked them")]

use std::cell::Cell;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use crate::error::{DriverError, Error, Result};
use crate::gate::{Closed, Gate, Pass};
use crate::kernel::{Grid, Kernel};
use crate::recording::Enqueued;
use crate::span::Span;

thread_local! {
    static LAUNCHES: Cell<u32> = const { Cell::new(0) };
    static FAILING: Cell<Option<u32>> = const { Cell::new(None) };
    static FREE: Cell<u64> = const { Cell::new(u64::MAX) };
    /// Launches until one has a fault; and whether one has had it.
    static FAULTING: Cell<Option<u32>> = const { Cell::new(None) };
    static HAS_FAULT: Cell<bool> = const { Cell::new(false) };
    static SYNCED: Cell<Option<bool>> = const { Cell::new(None) };
}

/// The stream's gate.
static GATE: Gate = Gate::new();

/// What is recorded of the stream; nothing where it is not captured.
static CAPTURED: Mutex<Option<Capture>> = Mutex::new(None);

struct Capture {
    enqueued: Vec<Enqueued>,
    /// What was done that a capture cannot have.
    broken_by: Option<&'static str>,
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

    /// Makes a kernel read where nothing is, once so many launches more have gone well: its launch succeeds, and every operation behind
    /// it fails. Nothing: the device is as new.
    pub fn fault_after(launches: Option<u32>) {
        FAULTING.set(launches);
        HAS_FAULT.set(false);
    }

    /// Whether launches wait for their kernels, as if `KVTIDE_CUDA_SYNC` said so; nothing: as that says.
    pub fn synchronise(each_launch: Option<bool>) {
        SYNCED.set(each_launch);
    }

    /// Memory that each allocation for the length of a call finds free; nothing: as much as it wants.
    pub fn limit_memory(bytes: Option<u64>) {
        FREE.set(bytes.unwrap_or(u64::MAX));
    }

    /// Whether a thread waits for the end of a capture.
    #[must_use]
    pub fn is_waiting(thread: ThreadId) -> bool {
        GATE.is_waiting(thread)
    }
}

/// Waits while another thread captures.
pub(crate) fn enter() -> Pass {
    GATE.enter()
}

/// What a test says of waiting for kernels.
pub(crate) fn synced() -> Option<bool> {
    SYNCED.get()
}

fn captured() -> MutexGuard<'static, Option<Capture>> {
    CAPTURED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A capture under way; dropped, it ends and nothing is kept of it.
pub(crate) struct Capturing {
    _closed: Closed,
}

/// Begins a capture, once no other thread is inside of the gate.
pub(crate) fn begin_capture() -> Result<Capturing> {
    let closed = GATE.close()?;
    *captured() = Some(Capture { enqueued: Vec::new(), broken_by: None });
    Ok(Capturing { _closed: closed })
}

impl Capturing {
    /// Ends it: what a replay is to do.
    pub fn end(self) -> Result<Vec<Enqueued>> {
        let Some(Capture { enqueued, broken_by }) = captured().take() else {
            return Err(Error::capture("it has ended already"));
        };
        broken_by.map_or(Ok(enqueued), |what| Err(Error::capture(format!("broken by {what}"))))
    }
}

impl Drop for Capturing {
    fn drop(&mut self) {
        *captured() = None;
    }
}

/// Drops memory; within a capture it would be the graph that gives it back, which it cannot.
pub(crate) fn give_back(memory: Vec<u128>) {
    GATE.give_back(Given(memory));
}

struct Given(#[expect(dead_code, reason = "dropped with it")] Vec<u128>);

impl Drop for Given {
    fn drop(&mut self) {
        break_capture("memory that was given back");
    }
}

/// A capture under way fails.
fn break_capture(what: &'static str) {
    if let Some(capture) = captured().as_mut() {
        capture.broken_by.get_or_insert(what);
    }
}

/// Work of the caller's: done, or recorded.
pub(crate) fn work(work: Box<dyn Fn() + Send>) {
    if let Some(capture) = captured().as_mut() {
        return capture.enqueued.push(Enqueued::Work(work));
    }
    work();
}

/// A launch: run, or recorded.
pub(crate) fn launch(kernel: &'static Kernel, grid: Grid, args: &[u8]) -> Result<()> {
    if let Some(capture) = captured().as_mut() {
        capture.enqueued.push(Enqueued::launch(kernel, grid, args));
        return Ok(());
    }
    run(kernel, grid, args)
}

/// Waits for what was launched: a fault shows here.
pub(crate) fn synchronize(what: &'static str) -> Result<()> {
    if captured().is_some() { Ok(()) } else { check_fault(what) }
}

/// A kernel's fault, as every operation behind it tells it.
fn check_fault(what: &'static str) -> Result<()> {
    if !HAS_FAULT.get() {
        return Ok(());
    }
    let driver = DriverError { code: 700, name: "CUDA_ERROR_ILLEGAL_ADDRESS".to_owned() };
    Err(Error::driver(what, driver, "an illegal memory access was encountered"))
}

/// Counts a launch; true where it is the one to have a fault.
fn faults() -> bool {
    let left = FAULTING.get();
    FAULTING.set(left.and_then(|left| left.checked_sub(1)));
    left == Some(0)
}

/// Counts an operation; true where this is the one to fail.
fn fails() -> bool {
    let left = FAILING.get();
    FAILING.set(left.and_then(|left| left.checked_sub(1)));
    left == Some(0)
}

/// An operation that is no launch.
pub(crate) fn operate(what: &'static str) -> Result<()> {
    check_not_captured("a copy from or to the host")?;
    check_fault(what)?;
    if fails() { Err(Error::launch(what, FAILED)) } else { Ok(()) }
}

/// An allocation.
pub(crate) fn allocate(bytes: usize) -> Result<()> {
    check_not_captured("memory that was taken")?;
    check_fault("taking memory of the device")?;
    let (bytes, free) = (bytes as u64, FREE.get());
    let refused = |free| Err(Error::OutOfMemory { bytes, free, total: free });
    if fails() {
        return refused(0);
    }
    if bytes > free { refused(free) } else { Ok(()) }
}

/// Whether this thread captures.
pub(crate) fn is_captured_here() -> bool {
    GATE.is_captured_here()
}

/// Refuses what a capture cannot have to the thread that captures. Another thread breaks it, as on a GPU.
fn check_not_captured(what: &'static str) -> Result<()> {
    if GATE.is_captured_here() {
        return Err(Error::capture(what));
    }
    break_capture(what);
    Ok(())
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
pub(crate) fn run(kernel: &'static Kernel, grid: Grid, args: &[u8]) -> Result<()> {
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
    // SAFETY: the entry is that of a kernel that takes arguments of this type, and the launcher that filled them has checked that
    // they stay inside spans that are borrowed.
    let outcome = unsafe { (kernel.emulated)(&raw const grid, args.as_ptr().cast()) };
    let reason = match outcome {
        0 => return Ok(()),
        1 => return Err(Error::OutOfMemory { bytes: grid.shared_bytes.into(), free: 0, total: 0 }),
        2 => "its threads wait for each other",
        _ => "a block has more threads than it takes",
    };
    Err(Error::launch(kernel.name, reason))
}
