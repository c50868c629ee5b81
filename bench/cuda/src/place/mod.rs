//! The device that runs the work and times it: a GPU, or the CPU that emulates one.
//!
//! ```text
//! copies     start          work work work          end
//! ------>    an event       enqueued work            an event      the copies keep the GPU busy while work is enqueued
//! ```
//!
//! Copies keep the GPU busy before the first event until all work is enqueued, so the time between the events is the
//! GPU's own, not that of the enqueuing host. The host's time is counted separately. On the CPU, a clock measures both.

use std::time::Instant;

use candle_core::Device;
use kvtide_bench::Took;
use kvtide_cuda::{Span, Stream};

use serde_json::{Value, json};

use crate::Result;

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(not(feature = "cuda"))]
mod cuda {
    use super::{Device, Driver, Stream};

    /// The reason why a build without CUDA has no GPU.
    pub fn open() -> Result<(Stream, Device, Box<dyn Driver>), String> {
        match kvtide_tensor::runtime::device("cuda") {
            Err(kvtide_tensor::Error::DeviceUnavailable { reason, .. }) => Err(reason),
            other => Err(format!("this build has no device for kernels: {:?}", other.is_ok())),
        }
    }
}

/// The operations of a GPU's driver.
trait Driver {
    fn machine(&self) -> Value;
    fn copy(&self, source: Span<'_>, target: Span<'_>, bytes: usize) -> Result<()>;
    /// Keeps the GPU busy while `times` pieces of work are enqueued, and records the start event after that.
    fn begin(&self, times: usize) -> Result<()>;
    /// Waits for all enqueued work, and returns the nanoseconds since the start event.
    fn end(&self) -> Result<f64>;
}

pub struct Place {
    pub stream: Stream,
    /// The device as candle's tensors and caches use it.
    pub device: Device,
    gpu: Option<Box<dyn Driver>>,
}

impl Place {
    /// Returns the first GPU, or the CPU that emulates one, or the reason why there is none.
    pub fn open(is_emulated: bool) -> std::result::Result<Place, String> {
        if is_emulated {
            return Ok(Place { stream: emulated()?, device: Device::Cpu, gpu: None });
        }
        let (stream, device, gpu) = cuda::open()?;
        Ok(Place { stream, device, gpu: Some(gpu) })
    }

    /// Returns its name and further details.
    pub fn machine(&self) -> Value {
        let emulated = || json!({ "device": "the CPU, emulating a GPU", "details": ["times say nothing about a GPU"] });
        self.gpu.as_ref().map_or_else(emulated, |gpu| gpu.machine())
    }

    pub fn is_gpu(&self) -> bool {
        self.gpu.is_some()
    }

    /// Enqueues the driver's own copy from device to device.
    pub fn copy(&self, source: Span<'_>, target: Span<'_>, bytes: usize) -> Result<()> {
        assert!(bytes <= source.bytes().min(target.bytes()), "a copy reaches outside its memory");
        match &self.gpu {
            Some(gpu) => gpu.copy(source, target, bytes),
            None => {
                let mut between = vec![0; bytes];
                self.stream.download(source, &mut between)?;
                Ok(self.stream.upload(&between, target)?)
            }
        }
    }

    /// Enqueues `times` pieces of work, one after the other, and returns the time of one piece.
    pub fn time(&self, times: usize, work: &mut dyn FnMut() -> Result<()>) -> Result<Took> {
        if let Some(gpu) = &self.gpu {
            gpu.begin(times)?;
        }
        let start = Instant::now();
        for _ in 0..times {
            work()?;
        }
        let host = start.elapsed().as_nanos() as f64;
        let device = match &self.gpu {
            Some(gpu) => gpu.end()?,
            None => host,
        };
        Ok(Took { device: device / times as f64, host: host / times as f64 })
    }
}

fn emulated() -> std::result::Result<Stream, String> {
    #[cfg(feature = "emulate")]
    return Ok(Stream::emulated());
    #[cfg(not(feature = "emulate"))]
    Err("this build cannot emulate a GPU: build it with --features emulate".to_owned())
}
