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
use kvtide_cuda::{DeviceMemory, Span, Stream};

use crate::{Machine, Result};

#[cfg_attr(not(feature = "cuda"), path = "no_cuda.rs")]
mod cuda;

pub struct Place {
    pub stream: Stream,
    /// The same device for candle's tensors and for caches.
    pub device: Device,
    gpu: Option<cuda::Gpu>,
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

    pub fn machine(&self) -> Machine {
        match &self.gpu {
            Some(gpu) => gpu.machine(),
            None => Machine {
                device: "the CPU in a GPU's stead".to_owned(),
                details: vec!["times say nothing about a GPU".to_owned()],
            },
        }
    }

    pub fn is_gpu(&self) -> bool {
        self.gpu.is_some()
    }

    pub fn memory(&self, bytes: usize) -> Result<DeviceMemory> {
        Ok(self.stream.memory(bytes)?)
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

/// The CPU that stands in for a GPU.
fn emulated() -> std::result::Result<Stream, String> {
    #[cfg(feature = "emulate")]
    return Ok(Stream::emulated());
    #[cfg(not(feature = "emulate"))]
    Err("this build has no CPU that stands in for a GPU: build it with --features emulate".to_owned())
}
