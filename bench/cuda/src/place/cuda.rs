//! The first GPU: copies by the driver, and events on the stream that candle and all caches use.
#![expect(unsafe_code, reason = "the driver's copies take addresses, and its version is asked for by address")]

use std::sync::Arc;

use candle_core::Device;
use candle_core::cuda_backend::cudarc::driver::sys::{
    CUdevice_attribute as Attribute, CUevent_flags, cuDriverGetVersion,
};
use candle_core::cuda_backend::cudarc::driver::{CudaEvent, CudaSlice, CudaStream, DevicePtr, result};
use kvtide_cuda::{Span, Stream};
use serde_json::{Value, json};

use super::Driver;
use crate::Result;

/// The bytes of each copy before a measurement, which takes about half a millisecond.
const AHEAD: usize = 1 << 30;

/// The number of pieces of work that are enqueued while one such copy runs.
const PER_COPY: usize = 16;

struct Gpu {
    stream: Arc<CudaStream>,
    start: CudaEvent,
    end: CudaEvent,
    ahead: CudaSlice<u8>,
}

pub fn open() -> std::result::Result<(Stream, Device, Box<dyn Driver>), String> {
    let device = match kvtide_tensor::runtime::device("cuda") {
        Ok(device) => device,
        Err(kvtide_tensor::Error::DeviceUnavailable { reason, .. }) => return Err(reason),
        Err(error) => return Err(error.to_string()),
    };
    let Device::Cuda(cuda) = &device else { return Err("the device is not an NVIDIA GPU".to_owned()) };
    let launches = Stream::gpu(cuda);
    let gpu = Gpu::new(cuda.cuda_stream()).map_err(|error| error.to_string())?;
    Ok((launches, device, Box::new(gpu)))
}

impl Gpu {
    fn new(stream: Arc<CudaStream>) -> Result<Self> {
        let event = || stream.context().new_event(Some(CUevent_flags::CU_EVENT_DEFAULT));
        let (start, end) = (event()?, event()?);
        let ahead = stream.alloc_zeros(2 * AHEAD)?;
        Ok(Gpu { stream, start, end, ahead })
    }
}

impl Driver for Gpu {
    fn machine(&self) -> Value {
        let context = self.stream.context();
        let ask = |attribute| context.attribute(attribute).ok();
        let mut version = 0;
        // SAFETY: the driver writes one number to the given address.
        let known = unsafe { cuDriverGetVersion(&raw mut version) }.result().is_ok();
        let details = [
            context.compute_capability().ok().map(|(major, minor)| format!("compute capability {major}.{minor}")),
            context.total_mem().ok().map(|bytes| format!("{:.1} GB", bytes as f64 / 1e9)),
            ask(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT).map(|count| format!("{count} multiprocessors")),
            ask(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE).map(|bytes| format!("L2 {} MiB", bytes >> 20)),
            known.then(|| format!("a driver for CUDA {}.{}", version / 1000, version % 1000 / 10)),
        ];
        let name = context.name().unwrap_or_else(|_| "a GPU without a name".to_owned());
        json!({ "device": name, "details": details.into_iter().flatten().collect::<Vec<_>>() })
    }

    fn copy(&self, source: Span<'_>, target: Span<'_>, bytes: usize) -> Result<()> {
        // SAFETY: both have `bytes` bytes, which the caller has checked, and belong to this stream.
        unsafe { result::memcpy_dtod_async(target.address(), source.address(), bytes, self.stream.cu_stream()) }?;
        Ok(())
    }

    fn begin(&self, times: usize) -> Result<()> {
        self.stream.synchronize()?;
        let first = self.ahead.device_ptr(&self.stream).0;
        for _ in 0..1 + times / PER_COPY {
            // SAFETY: the two halves of one allocation.
            unsafe { result::memcpy_dtod_async(first + AHEAD as u64, first, AHEAD, self.stream.cu_stream()) }?;
        }
        Ok(self.start.record(&self.stream)?)
    }

    fn end(&self) -> Result<f64> {
        self.end.record(&self.stream)?;
        Ok(f64::from(self.start.elapsed_ms(&self.end)?) * 1e6)
    }
}
