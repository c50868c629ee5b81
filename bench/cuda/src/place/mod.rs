//! Where work runs and how long it takes there: a GPU, or the CPU that stands in for one.
//!
//! ```text
//! copies     start          work work work          end
//! ------>    an event       what was enqueued        an event      the GPU has been busy with the copies meanwhile
//! ```
//!
//! A GPU is kept busy in front of the first event until everything behind it is enqueued, so that the time between the events is
//! the GPU's own, not that of the host which asks for it. That is counted beside it. On the CPU both are what a clock says.

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
        match kvtide_tensor::device("cuda") {
            Err(kvtide_tensor::Error::DeviceUnavailable { reason, .. }) => Err(reason),
            other => Err(format!("a device of this build is none for kernels: {:?}", other.is_ok())),
        }
    }
}

/// What a GPU's driver does.
trait Driver {
    fn machine(&self) -> Value;
    fn copy(&self, source: Span<'_>, target: Span<'_>, bytes: usize) -> Result<()>;
    /// Keeps the GPU busy while `times` pieces of work are enqueued, and takes the time behind that.
    fn begin(&self, times: usize) -> Result<()>;
    /// Nanoseconds since then, once everything that was enqueued is done.
    fn end(&self) -> Result<f64>;
}

pub struct Place {
    pub stream: Stream,
    /// The same device for candle's tensors and for caches.
    pub device: Device,
    gpu: Option<Box<dyn Driver>>,
}

impl Place {
    /// The first GPU, or the CPU in its stead; else the reason why not.
    pub fn open(is_emulated: bool) -> std::result::Result<Place, String> {
        if is_emulated {
            return Ok(Place { stream: emulated()?, device: Device::Cpu, gpu: None });
        }
        let (stream, device, gpu) = cuda::open()?;
        Ok(Place { stream, device, gpu: Some(gpu) })
    }

    /// Its name, and what else is known of it.
    pub fn machine(&self) -> Value {
        let emulated = || json!({ "device": "the CPU in a GPU's stead", "details": ["times say nothing about a GPU"] });
        self.gpu.as_ref().map_or_else(emulated, |gpu| gpu.machine())
    }

    pub fn is_gpu(&self) -> bool {
        self.gpu.is_some()
    }

    /// The driver's own copy from device to device, enqueued.
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

    /// How long one piece of `times` takes, which are enqueued one behind the other.
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
    Err("this build has no CPU that stands in for a GPU: build it with --features emulate".to_owned())
}
