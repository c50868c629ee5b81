//! Launches on a GPU, on the stream that candle works on.
//!
//! ```text
//! launch    a function of a loaded module (modules.rs), arguments by value, enqueued
//! upload    through pinned memory (pinned.rs), enqueued: the host goes on at once
//! download  through pinned memory in pieces: one is on its way while the one before is copied out
//! capture   launches recorded as a graph (captured.rs); no copy from or to the host is
//! ```
//!
//! All of it passes the stream's gate: while another thread captures, it waits.
#![expect(unsafe_code, reason = "kernels and copies take addresses; launchers have checked them")]

#[cfg(feature = "captured-steps")]
mod captured;
mod modules;
mod pinned;

use bytemuck::Pod;
use candle_core::CudaDevice;
use candle_core::cuda_backend::cudarc::driver::sys::CUdevice_attribute as Attribute;
use candle_core::cuda_backend::cudarc::driver::sys::CUresult;
use candle_core::cuda_backend::cudarc::driver::{
    CudaSlice, CudaStream, DevicePtr, DeviceRepr, DriverError, LaunchConfig, PushKernelArg,
};
use std::mem::ManuallyDrop;
use std::sync::{Arc, PoisonError, RwLock};

use crate::error::{self, Error, Result};
use crate::gate::{Gate, Pass};
use crate::kernel::{Grid, Kernel, SharedRoom};
use crate::span::Span;
#[cfg(feature = "captured-steps")]
pub(crate) use captured::Captured;
pub(crate) use modules::Module;

/// The stream of a GPU.
#[derive(Clone, Debug)]
pub(crate) struct Gpu {
    stream: Arc<CudaStream>,
    gate: &'static Gate,
}

/// The gates of streams, by the driver's handle: a stream has the same one for as long as it lives.
static GATES: RwLock<Vec<(usize, &'static Gate)>> = RwLock::new(Vec::new());

fn gate_of(stream: &CudaStream) -> &'static Gate {
    let key = stream.cu_stream().addr();
    let known = |gates: &[(usize, &'static Gate)]| gates.iter().find(|(of, _)| *of == key).map(|&(_, gate)| gate);
    if let Some(gate) = known(&GATES.read().unwrap_or_else(PoisonError::into_inner)) {
        return gate;
    }
    let mut gates = GATES.write().unwrap_or_else(PoisonError::into_inner);
    known(&gates).unwrap_or_else(|| {
        let gate = Box::leak(Box::default());
        gates.push((key, gate));
        gate
    })
}

/// Memory of a GPU that a launch reads; it is given back in the stream's order.
#[derive(Debug)]
pub(crate) struct Memory {
    bytes: ManuallyDrop<CudaSlice<u8>>,
    gate: &'static Gate,
}

impl Memory {
    pub fn address(&self) -> u64 {
        self.bytes.device_ptr(self.bytes.stream()).0
    }

    /// To write to.
    pub fn span(&mut self) -> Span<'_> {
        Span::of_slice(&self.bytes, true)
    }

    /// To read from.
    pub fn read_span(&self) -> Span<'_> {
        Span::of_slice(&self.bytes, false)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: it is dropped once, here, and not used behind it.
        self.gate.give_back(unsafe { ManuallyDrop::take(&mut self.bytes) });
    }
}

/// Arguments as the driver takes them.
#[repr(transparent)]
struct Passed<T>(T);

// SAFETY: plain numbers without padding, laid out as the kernel's own struct; a test compares the sizes.
unsafe impl<T: Pod> DeviceRepr for Passed<T> {}

/// The shared memory of a block where the driver does not say.
const SHARED_AT_LEAST: usize = 48 << 10;

impl Gpu {
    pub fn new(device: &CudaDevice) -> Self {
        let stream = device.cuda_stream();
        let gate = gate_of(&stream);
        Gpu { stream, gate }
    }

    /// Waits while another thread captures.
    pub fn enter(&self) -> Pass {
        self.gate.enter()
    }

    /// Enqueues a grid. The caller has entered the gate.
    pub fn launch<A: Pod>(&self, kernel: &'static Kernel, grid: Grid, args: &A) -> Result<()> {
        let failed = |error: DriverError| failure(kernel.name, &error);
        let function = modules::function(self.stream.context(), kernel).map_err(failed)?;
        let [x, y, z] = grid.threads;
        let [blocks_x, blocks_y, blocks_z] = grid.blocks;
        let args = Passed(*args);
        let mut launch = self.stream.launch_builder(&function);
        launch.arg(&args);
        let config = LaunchConfig {
            grid_dim: (blocks_x, blocks_y, blocks_z),
            block_dim: (x, y, z),
            shared_mem_bytes: grid.shared_bytes,
        };
        // SAFETY: the kernel takes one argument of this type, and the launcher that filled it has checked that it stays inside
        // spans that live until the work is done.
        unsafe { launch.launch(config) }.map_err(failed)?;
        Ok(())
    }

    /// A copy of `bytes` in the GPU's memory.
    pub fn upload(&self, bytes: &[u8]) -> Result<Memory> {
        let _pass = self.enter();
        self.check_not_captured()?;
        let memory = self.memory(bytes.len())?;
        pinned::copy_in(&self.stream, bytes, memory.address())
            .map_err(|error| failure("a copy to the device", &error))?;
        Ok(memory)
    }

    /// Memory of the GPU, whatever is in it.
    pub fn memory(&self, bytes: usize) -> Result<Memory> {
        let _pass = self.enter();
        // SAFETY: bytes have no invalid values, and whoever asks for them writes before they are read.
        let taken = unsafe { self.stream.alloc::<u8>(bytes) };
        let refused = |error: DriverError| match error.0 {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                let (free, total) = self.stream.context().mem_get_info().unwrap_or_default();
                Error::OutOfMemory { bytes: bytes as u64, free: free as u64, total: total as u64 }
            }
            _ => failure("taking memory of the device", &error),
        };
        Ok(Memory { bytes: ManuallyDrop::new(taken.map_err(refused)?), gate: self.gate })
    }

    /// Copies `bytes` to the start of a span.
    pub fn write(&self, bytes: &[u8], target: Span<'_>) -> Result<()> {
        let _pass = self.enter();
        self.check_not_captured()?;
        pinned::copy_in(&self.stream, bytes, target.address()).map_err(|error| failure("a copy to the device", &error))
    }

    /// Waits until all that was enqueued is done: `what` is said of a failure.
    pub fn synchronize(&self, what: &'static str) -> Result<()> {
        let _pass = self.enter();
        self.stream.synchronize().map_err(|error| failure(what, &error))
    }

    /// Whether this thread captures.
    pub fn is_captured_here(&self) -> bool {
        self.gate.is_captured_here()
    }

    /// Refuses what the host takes part in while a graph is captured: a replay would do it with memory that is gone.
    fn check_not_captured(&self) -> Result<()> {
        if self.is_captured_here() { Err(Error::capture("a copy from or to the host")) } else { Ok(()) }
    }

    /// Copies the start of a span to the host's memory, once all that was enqueued before is done.
    pub fn download(&self, source: Span<'_>, out: &mut [u8]) -> Result<()> {
        let _pass = self.enter();
        self.check_not_captured()?;
        pinned::copy_out(&self.stream, source.address(), out).map_err(|error| failure("a copy to the host", &error))
    }

    /// How many multiprocessors there are; one where the driver does not say.
    pub fn multiprocessors(&self) -> usize {
        let count = self.stream.context().attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
        count.ok().and_then(|count| usize::try_from(count).ok()).unwrap_or(1)
    }

    /// The shared memory of a block; what every GPU has where the driver does not say.
    pub fn shared_room(&self) -> SharedRoom {
        let ask = |attribute| match self.stream.context().attribute(attribute) {
            Ok(bytes) => usize::try_from(bytes).unwrap_or(SHARED_AT_LEAST),
            Err(_) => SHARED_AT_LEAST,
        };
        let most = ask(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
        let all = ask(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
        // A block takes 1 KiB more than it asks for.
        SharedRoom { most, twice: (all / 2).saturating_sub(1 << 10).min(most) }
    }
}

fn failure(kernel: &'static str, error: &DriverError) -> Error {
    let said =
        |text: std::result::Result<&std::ffi::CStr, DriverError>| text.map(|text| text.to_string_lossy().into_owned());
    let code = error.0 as u32;
    let name = said(error.error_name()).unwrap_or_else(|_| "an error without a name".to_owned());
    let text = said(error.error_string()).unwrap_or_else(|_| "the driver does not say why".to_owned());
    Error::driver(kernel, error::DriverError { code, name }, &text)
}
