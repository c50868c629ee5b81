//! Launches on a GPU, through candle's device: its stream, its loaded modules.
#![expect(unsafe_code, reason = "kernels take addresses; their launchers have checked them")]

use bytemuck::Pod;
use candle_core::CudaDevice;
use candle_core::cuda_backend::cudarc;
use candle_core::cuda_backend::cudarc::driver::sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
use candle_core::cuda_backend::cudarc::driver::{CudaSlice, DevicePtr, DeviceRepr, LaunchConfig, PushKernelArg};

use crate::error::{Error, Result};
use crate::kernel::{Grid, Kernel};
use crate::span::Span;

/// A file of kernels, as PTX: the driver compiles it for the GPU that it finds, when its first kernel is wanted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Module {
    Boxes,
    Insert,
    Pieces,
    Shift,
    Strips,
}

impl Module {
    fn name_and_ptx(self) -> (&'static str, &'static str) {
        macro_rules! ptx {
            ($name:literal) => {
                (concat!("kvtide_", $name), include_str!(concat!(env!("OUT_DIR"), "/", $name, ".ptx")))
            };
        }
        match self {
            Module::Boxes => ptx!("boxes"),
            Module::Insert => ptx!("insert"),
            Module::Pieces => ptx!("pieces"),
            Module::Shift => ptx!("shift"),
            Module::Strips => ptx!("strips"),
        }
    }
}

/// The stream of a GPU.
#[derive(Clone, Debug)]
pub(crate) struct Gpu {
    device: CudaDevice,
}

/// Memory of a GPU that a launch reads; it is given back in the stream's order.
pub(crate) struct Memory {
    bytes: CudaSlice<u8>,
}

impl Memory {
    pub fn address(&self) -> u64 {
        self.bytes.device_ptr(self.bytes.stream()).0
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
        Gpu { device: device.clone() }
    }

    pub fn launch(&self, kernel: &'static Kernel, grid: Grid, args: &impl Pod) -> Result<()> {
        let failed = |error: &dyn std::fmt::Display| Error::Launch { kernel: kernel.name, reason: error.to_string() };
        let (module, ptx) = kernel.module.name_and_ptx();
        let function = self.device.get_or_load_custom_func(kernel.name, module, ptx).map_err(|error| failed(&error))?;
        if grid.shared_bytes > SHARED_UNASKED {
            function
                .set_attribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, grid.shared_bytes as i32)
                .map_err(|error| failed(&error))?;
        }
        let [x, y, z] = grid.threads;
        let [blocks_x, blocks_y, blocks_z] = grid.blocks;
        let args = Passed(*args);
        let mut launch = function.builder();
        launch.arg(&args);
        let config = LaunchConfig {
            grid_dim: (blocks_x, blocks_y, blocks_z),
            block_dim: (x, y, z),
            shared_mem_bytes: grid.shared_bytes,
        };
        // SAFETY: the kernel takes one argument of this type, and the launcher that filled it has checked that it stays inside
        // spans that live until the work is done.
        unsafe { launch.launch(config) }.map_err(|error| failed(&error))?;
        Ok(())
    }

    /// Copies the start of a span to the host's memory, once all that was enqueued before is done.
    pub fn download(&self, source: Span<'_>, out: &mut [u8]) -> Result<()> {
        let failed =
            |error: &dyn std::fmt::Display| Error::Launch { kernel: "a copy to the host", reason: error.to_string() };
        let stream = self.device.cuda_stream();
        stream.context().bind_to_thread().map_err(|error| failed(&error))?;
        // SAFETY: the span has as many bytes, checked by the caller, and belongs to this stream.
        unsafe { cudarc::driver::result::memcpy_dtoh_async(out, source.address(), stream.cu_stream()) }
            .map_err(|error| failed(&error))?;
        stream.synchronize().map_err(|error| failed(&error))
    }

    /// A copy of `bytes` in the GPU's memory.
    pub fn upload(&self, bytes: &[u8]) -> Result<Memory> {
        let refused = |_| Error::OutOfMemory { bytes: bytes.len() };
        Ok(Memory { bytes: self.device.clone_htod(bytes).map_err(refused)? })
    }
}
