//! The target of launches: a GPU's stream, in order, or the CPU that stands in for a GPU. A build without either has no
//! stream.
#![cfg_attr(
    not(any(feature = "cuda", feature = "emulate")),
    expect(unused_variables, reason = "without a stream arguments are not used")
)]

use bytemuck::Pod;

use crate::allocation::Allocation;
use crate::error::Result;
use crate::kernel::{Grid, Kernel, SharedRoom};
use crate::list::List;
use crate::memory::{DeviceMemory, Reached};
use crate::span::Span;
use crate::synced::is_synced;

/// A stream of work.
#[derive(Clone, Debug)]
pub struct Stream {
    processor: Processor,
}

#[derive(Clone, Debug)]
enum Processor {
    #[cfg(feature = "cuda")]
    Gpu(crate::gpu::Gpu),
    #[cfg(feature = "emulate")]
    Emulated,
    #[cfg(not(any(feature = "cuda", feature = "emulate")))]
    #[expect(dead_code, reason = "a build without a stream")]
    None(std::convert::Infallible),
}

/// Selects between code for a GPU and code for the CPU that stands in for one.
macro_rules! on {
    ($target:expr, |$gpu:ident| $on_gpu:expr, $emulated:expr $(,)?) => {
        match $target {
            #[cfg(feature = "cuda")]
            Processor::Gpu($gpu) => $on_gpu,
            #[cfg(feature = "emulate")]
            Processor::Emulated => $emulated,
            #[cfg(not(any(feature = "cuda", feature = "emulate")))]
            Processor::None(never) => match *never {},
        }
    };
}

/// A list, and the memory in which the device reads it, which must live until the launch is enqueued.
pub(crate) struct Listed<'a, T> {
    pub list: List,
    _items: &'a [T],
    #[cfg(feature = "cuda")]
    _memory: Option<crate::gpu::Memory>,
}

impl Stream {
    /// The stream that candle uses on a GPU.
    #[cfg(feature = "cuda")]
    #[must_use]
    pub fn gpu(device: &candle_core::CudaDevice) -> Self {
        Stream { processor: Processor::Gpu(crate::gpu::Gpu::new(device)) }
    }

    /// The CPU as a stand-in for a GPU: launches are done when they return.
    #[cfg(feature = "emulate")]
    #[must_use]
    pub fn emulated() -> Self {
        Stream { processor: Processor::Emulated }
    }

    /// Copies `bytes` to the start of a span: the host's memory may be reused when it returns.
    pub fn upload(&self, bytes: &[u8], target: Span<'_>) -> Result<()> {
        target.check_writable();
        assert!(bytes.len() <= target.bytes(), "more bytes than the span has");
        on!(&self.processor, |gpu| gpu.write(bytes, target), {
            crate::emulated::operate("a copy to the device")?;
            crate::emulated::upload(bytes, target);
            Ok(())
        })
    }

    /// Copies the start of a span to host memory, after all previously enqueued work is done.
    pub fn download(&self, source: Span<'_>, out: &mut [u8]) -> Result<()> {
        assert!(out.len() <= source.bytes(), "more bytes than the span has");
        on!(&self.processor, |gpu| gpu.download(source, out), {
            crate::emulated::operate("a copy to the host")?;
            crate::emulated::download(source, out);
            Ok(())
        })
    }

    /// Enqueues a grid of a kernel with these arguments.
    pub(crate) fn launch(&self, kernel: &'static Kernel, grid: Grid, args: &impl Pod) -> Result<()> {
        if grid.blocks.contains(&0) {
            return Ok(());
        }
        self.enqueue(kernel, grid, args)?;
        self.settle(kernel.name)
    }

    fn enqueue(&self, kernel: &'static Kernel, grid: Grid, args: &impl Pod) -> Result<()> {
        on!(&self.processor, |gpu| gpu.launch(kernel, grid, args), {
            crate::emulated::launch(kernel, grid, bytemuck::bytes_of(args))
        })
    }

    /// If launches are synchronous, waits for earlier launches and attributes a failure to `kernel`.
    fn settle(&self, kernel: &'static str) -> Result<()> {
        if !is_synced() {
            return Ok(());
        }
        on!(&self.processor, |gpu| gpu.synchronize(kernel), crate::emulated::synchronize(kernel))
    }

    /// Prepares a list that a launch passes along.
    pub(crate) fn list<'a, T: Pod>(&self, items: &'a [T]) -> Result<Listed<'a, T>> {
        let near = List::near(items);
        on!(
            &self.processor,
            |gpu| {
                let memory = near.is_none().then(|| gpu.upload(bytemuck::cast_slice(items))).transpose()?;
                let far = || memory.as_ref().map(|memory| List::far(memory.address()));
                let list = near.or_else(far).expect("near or far");
                Ok(Listed { list, _items: items, _memory: memory })
            },
            Ok(Listed {
                list: near.unwrap_or_else(|| List::far(items.as_ptr().expose_provenance() as u64)),
                _items: items,
                #[cfg(feature = "cuda")]
                _memory: None,
            }),
        )
    }

    /// Allocates device memory for the duration of a call.
    pub fn memory(&self, bytes: usize) -> Result<DeviceMemory> {
        self.take(bytes).map(DeviceMemory::new)
    }

    fn take(&self, bytes: usize) -> Result<Allocation> {
        on!(&self.processor, |gpu| Ok(Allocation::Gpu(gpu.memory(bytes.max(1))?)), {
            crate::emulated::allocate(bytes)?;
            Allocation::on_host(bytes)
        })
    }

    /// Makes host bytes readable for the device.
    pub fn reach<'a>(&self, host: &'a [u8]) -> Result<Reached<'a>> {
        on!(
            &self.processor,
            |gpu| {
                let copy = (!host.is_empty()).then(|| gpu.upload(host)).transpose()?;
                Ok(Reached { host, copy })
            },
            Ok(Reached {
                host,
                #[cfg(feature = "cuda")]
                copy: None,
            }),
        )
    }

    /// Waits until all enqueued work is done.
    pub fn synchronize(&self) -> Result<()> {
        on!(&self.processor, |gpu| gpu.synchronize("waiting for the device"), {
            crate::emulated::synchronize("waiting for the device")
        })
    }

    /// The number of multiprocessors that work on a launch.
    pub(crate) fn multiprocessors(&self) -> usize {
        // The number of an H200.
        on!(&self.processor, |gpu| gpu.multiprocessors(), 132)
    }

    /// The shared memory of a block.
    pub(crate) fn shared_room(&self) -> SharedRoom {
        on!(
            &self.processor,
            |gpu| gpu.shared_room(),
            // The sizes of an H200.
            SharedRoom { most: 227 << 10, twice: 113 << 10 },
        )
    }
}
