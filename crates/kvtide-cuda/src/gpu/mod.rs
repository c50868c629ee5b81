//! Launches on a GPU, on the stream that candle works on.
//!
//! ```text
//! launch    a function of a loaded module (modules.rs), arguments by value, enqueued
//! upload    through pinned memory (pinned.rs), enqueued: the host goes on at once
//! download  through pinned memory in pieces: one is on its way while the one before is copied out
//! capture   launches recorded as a graph (captured.rs); no copy from or to the host is
//! ```
#![expect(unsafe_code, reason = "kernels and copies take addresses; launchers have checked them")]

#[cfg(feature = "captured-steps")]
mod captured;
mod modules;
mod pinned;

use bytemuck::Pod;
use candle_core::CudaDevice;
use candle_core::cuda_backend::cudarc::driver::sys::CUdevice_attribute as Attribute;
use candle_core::cuda_backend::cudarc::driver::sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
use candle_core::cuda_backend::cudarc::driver::sys::CUstreamCaptureStatus_enum as Status;
use candle_core::cuda_backend::cudarc::driver::{
    CudaSlice, CudaStream, DevicePtr, DeviceRepr, DriverError, LaunchConfig, PushKernelArg,
};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::kernel::{Grid, Kernel, SharedRoom};
use crate::span::Span;
#[cfg(feature = "captured-steps")]
pub(crate) use captured::Captured;
pub(crate) use modules::Module;

/// The stream of a GPU.
#[derive(Clone, Debug)]
pub(crate) struct Gpu {
    stream: Arc<CudaStream>,
}

/// Memory of a GPU that a launch reads; it is given back in the stream's order.
#[derive(Debug)]
pub(crate) struct Memory {
    bytes: CudaSlice<u8>,
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

/// Arguments as the driver takes them.
#[repr(transparent)]
struct Passed<T>(T);

// SAFETY: plain numbers without padding, laid out as the kernel's own struct; a test compares the sizes.
unsafe impl<T: Pod> DeviceRepr for Passed<T> {}

/// What a launch may have of shared memory without asking.
const SHARED_UNASKED: u32 = 48 << 10;

impl Gpu {
    pub fn new(device: &CudaDevice) -> Self {
        Gpu { stream: device.cuda_stream() }
    }

    pub fn launch<A: Pod>(&self, kernel: &'static Kernel, grid: Grid, args: &A) -> Result<()> {
        let failed = |error: DriverError| failure(kernel.name, &error);
        let function = modules::function(self.stream.context(), kernel).map_err(failed)?;
        if grid.shared_bytes > SHARED_UNASKED {
            function
                .set_attribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, grid.shared_bytes as i32)
                .map_err(failed)?;
        }
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
        self.check_not_captured()?;
        let memory = self.memory(bytes.len())?;
        pinned::copy_in(&self.stream, bytes, memory.address())
            .map_err(|error| failure("a copy to the device", &error))?;
        Ok(memory)
    }

    /// Memory of the GPU, whatever is in it.
    pub fn memory(&self, bytes: usize) -> Result<Memory> {
        // SAFETY: bytes have no invalid values, and whoever asks for them writes before they are read.
        let memory = unsafe { self.stream.alloc::<u8>(bytes) };
        let refused = |_| {
            let (free, total) = self.stream.context().mem_get_info().unwrap_or_default();
            Error::OutOfMemory { bytes: bytes as u64, free: free as u64, total: total as u64 }
        };
        Ok(Memory { bytes: memory.map_err(refused)? })
    }

    /// Copies `bytes` to the start of a span.
    pub fn write(&self, bytes: &[u8], target: Span<'_>) -> Result<()> {
        self.check_not_captured()?;
        pinned::copy_in(&self.stream, bytes, target.address()).map_err(|error| failure("a copy to the device", &error))
    }

    /// Waits until all that was enqueued is done.
    pub fn synchronize(&self) -> Result<()> {
        self.stream.synchronize().map_err(|error| failure("waiting for the device", &error))
    }

    /// Refuses what the host takes part in while a graph is captured: a replay would do it with memory that is gone.
    fn check_not_captured(&self) -> Result<()> {
        match self.stream.capture_status().map_err(failed)? {
            Status::CU_STREAM_CAPTURE_STATUS_NONE => Ok(()),
            _ => Err(Error::Launch { kernel: CAPTURE, reason: "a copy from or to the host".to_owned() }),
        }
    }

    /// Copies the start of a span to the host's memory, once all that was enqueued before is done.
    pub fn download(&self, source: Span<'_>, out: &mut [u8]) -> Result<()> {
        self.check_not_captured()?;
        pinned::copy_out(&self.stream, source.address(), out).map_err(|error| failure("a copy to the host", &error))
    }

    /// The shared memory of a block; what every GPU has where the driver does not say.
    pub fn shared_room(&self) -> SharedRoom {
        let ask = |attribute| match self.stream.context().attribute(attribute) {
            Ok(bytes) => usize::try_from(bytes).unwrap_or(SHARED_UNASKED as usize),
            Err(_) => SHARED_UNASKED as usize,
        };
        let most = ask(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
        let all = ask(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
        // A block takes 1 KiB more than it asks for.
        SharedRoom { most, twice: (all / 2).saturating_sub(1 << 10).min(most) }
    }
}

const CAPTURE: &str = "the capture of a graph";

fn failed(error: DriverError) -> Error {
    failure(CAPTURE, &error)
}

fn failure(kernel: &'static str, error: &DriverError) -> Error {
    Error::Launch { kernel, reason: error.to_string() }
}
