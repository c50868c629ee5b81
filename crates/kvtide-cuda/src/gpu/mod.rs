//! Launches on a GPU, on the stream that candle uses.
//!
//! ```text
//! launch    a function of a loaded module (modules.rs), arguments by value, enqueued
//! upload    through pinned memory (pinned.rs), enqueued: the host continues at once
//! download  through pinned memory in pieces: one is in flight while the previous one is copied out
//! ```
#![expect(unsafe_code, reason = "kernels and copies take addresses; launchers have checked them")]

mod modules;
mod pinned;

use bytemuck::Pod;
use candle_core::CudaDevice;
use candle_core::cuda_backend::cudarc::driver::sys::CUdevice_attribute as Attribute;
use candle_core::cuda_backend::cudarc::driver::sys::CUresult;
use candle_core::cuda_backend::cudarc::driver::{
    CudaSlice, CudaStream, DevicePtr, DeviceRepr, DriverError, LaunchConfig, PushKernelArg,
};
use std::sync::Arc;

use crate::error::{self, Error, Result};
use crate::kernel::{Grid, Kernel, SharedRoom};
use crate::span::Span;
pub(crate) use modules::Module;

/// The stream of a GPU.
#[derive(Clone, Debug)]
pub(crate) struct Gpu {
    stream: Arc<CudaStream>,
}

/// GPU memory that a launch reads; it is freed in the stream's order.
#[derive(Debug)]
pub(crate) struct Memory {
    bytes: CudaSlice<u8>,
}

impl Memory {
    pub fn address(&self) -> u64 {
        self.bytes.device_ptr(self.bytes.stream()).0
    }

    /// The memory, for writing.
    pub fn span(&mut self) -> Span<'_> {
        Span::of_slice(&self.bytes, true)
    }

    /// The memory, for reading.
    pub fn read_span(&self) -> Span<'_> {
        Span::of_slice(&self.bytes, false)
    }
}

/// Arguments in the form that the driver expects.
#[repr(transparent)]
struct Passed<T>(T);

// SAFETY: plain numbers without padding, in the layout of the kernel's own struct; a test compares the sizes.
unsafe impl<T: Pod> DeviceRepr for Passed<T> {}

/// The shared memory of a block if the driver does not report it.
const SHARED_AT_LEAST: usize = 48 << 10;

impl Gpu {
    pub fn new(device: &CudaDevice) -> Self {
        Gpu { stream: device.cuda_stream() }
    }

    /// Enqueues a grid.
    pub fn launch<A: Pod>(&self, kernel: &'static Kernel, grid: Grid, args: &A) -> Result<()> {
        let failed = |error: DriverError| failure(kernel.name, &error);
        let function = modules::function(self.stream.context(), kernel.module, kernel.name).map_err(failed)?;
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
        // SAFETY: the kernel takes one argument of this type, and the launcher that filled it has checked that its accesses
        // stay inside spans that live until the work is done.
        unsafe { launch.launch(config) }.map_err(failed)?;
        Ok(())
    }

    /// Copies `bytes` to GPU memory.
    pub fn upload(&self, bytes: &[u8]) -> Result<Memory> {
        let memory = self.memory(bytes.len())?;
        pinned::copy_in(&self.stream, bytes, memory.address())
            .map_err(|error| failure("a copy to the device", &error))?;
        Ok(memory)
    }

    /// Allocates GPU memory with arbitrary content.
    pub fn memory(&self, bytes: usize) -> Result<Memory> {
        // SAFETY: bytes have no invalid values, and the caller writes them before they are read.
        let taken = unsafe { self.stream.alloc::<u8>(bytes) };
        let refused = |error: DriverError| match error.0 {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                let (free, total) = self.stream.context().mem_get_info().unwrap_or_default();
                Error::OutOfMemory { bytes: bytes as u64, free: free as u64, total: total as u64 }
            }
            _ => failure("an allocation of device memory", &error),
        };
        Ok(Memory { bytes: taken.map_err(refused)? })
    }

    /// Copies `bytes` to the start of a span.
    pub fn write(&self, bytes: &[u8], target: Span<'_>) -> Result<()> {
        pinned::copy_in(&self.stream, bytes, target.address()).map_err(|error| failure("a copy to the device", &error))
    }

    /// Waits until all enqueued work is done; a failure is reported with the name `what`.
    pub fn synchronize(&self, what: &'static str) -> Result<()> {
        self.stream.synchronize().map_err(|error| failure(what, &error))
    }

    /// Copies the start of a span to host memory, after all previously enqueued work is done.
    pub fn download(&self, source: Span<'_>, out: &mut [u8]) -> Result<()> {
        pinned::copy_out(&self.stream, source.address(), out).map_err(|error| failure("a copy to the host", &error))
    }

    /// The number of multiprocessors; 1 if the driver does not report it.
    pub fn multiprocessors(&self) -> usize {
        let count = self.stream.context().attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
        count.ok().and_then(|count| usize::try_from(count).ok()).unwrap_or(1)
    }

    /// The shared memory of a block; what every GPU has if the driver does not report it.
    pub fn shared_room(&self) -> SharedRoom {
        let ask = |attribute| match self.stream.context().attribute(attribute) {
            Ok(bytes) => usize::try_from(bytes).unwrap_or(SHARED_AT_LEAST),
            Err(_) => SHARED_AT_LEAST,
        };
        let most = ask(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
        let all = ask(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
        // A block uses 1 KiB more than requested.
        SharedRoom { most, twice: (all / 2).saturating_sub(1 << 10).min(most) }
    }
}

fn failure(kernel: &'static str, error: &DriverError) -> Error {
    let said =
        |text: std::result::Result<&std::ffi::CStr, DriverError>| text.map(|text| text.to_string_lossy().into_owned());
    let code = error.0 as u32;
    let name = said(error.error_name()).unwrap_or_else(|_| "unknown error".to_owned());
    let text = said(error.error_string()).unwrap_or_else(|_| "the driver gave no reason".to_owned());
    Error::driver(kernel, error::DriverError { code, name }, &text)
}
