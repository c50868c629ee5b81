//! Where launches go: a GPU's stream, in order, or the CPU that stands in for one. A build without either has no stream.
//!
//! With `KVTIDE_CUDA_SYNC=1` each launch waits for its kernel, so that a fault is told with the name of the kernel that did it.
#![cfg_attr(
    not(any(feature = "cuda", feature = "emulate")),
    expect(unused_variables, reason = "without a stream nothing is done with what it is given")
)]

use std::sync::{Arc, OnceLock};

use bytemuck::Pod;

use crate::allocation::Allocation;
use crate::error::Result;
use crate::gate::Pass;
use crate::kernel::{Grid, Kernel, SharedRoom};
use crate::list::List;
use crate::memory::{DeviceMemory, Reached};
use crate::recording::Recording;
use crate::span::Span;

/// A stream of work.
#[derive(Clone, Debug)]
pub struct Stream {
    processor: Processor,
    /// What of it is captured.
    recording: Option<Arc<Recording>>,
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

/// What is done on a GPU, and what on the CPU that stands in for one.
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

/// A list, and the memory in which the device reads it: it has to live until the launch is enqueued.
pub(crate) struct Listed<'a, T> {
    pub list: List,
    _items: &'a [T],
    #[cfg(feature = "cuda")]
    _memory: Option<crate::gpu::Memory>,
}

/// Whether each launch waits for its kernel: `KVTIDE_CUDA_SYNC` is set, and neither empty nor 0.
pub(crate) fn is_synced() -> bool {
    static NAMED: OnceLock<bool> = OnceLock::new();
    #[cfg(feature = "emulate")]
    if let Some(chosen) = crate::emulated::synced() {
        return chosen;
    }
    *NAMED.get_or_init(|| std::env::var_os("KVTIDE_CUDA_SYNC").is_some_and(|value| !value.is_empty() && value != "0"))
}

impl Stream {
    /// The stream of a GPU that candle works on.
    #[cfg(feature = "cuda")]
    #[must_use]
    pub fn gpu(device: &candle_core::CudaDevice) -> Self {
        Stream { processor: Processor::Gpu(crate::gpu::Gpu::new(device)), recording: None }
    }

    /// The CPU in a GPU's stead: launches are done when they return.
    #[cfg(feature = "emulate")]
    #[must_use]
    pub fn emulated() -> Self {
        Stream { processor: Processor::Emulated, recording: None }
    }

    /// Holds off captures by other threads until it is dropped, and waits for one that is under way: what would reach the stream during
    /// a capture would be recorded instead of done. Launches and copies of this crate do so by themselves; who calls others on the
    /// device, candle's for example, while another thread may capture, holds this meanwhile.
    ///
    /// A capture that this thread itself asks for is refused as long as it holds one.
    pub fn enter(&self) -> Pass {
        on!(&self.processor, |gpu| gpu.enter(), crate::emulated::enter())
    }

    /// Copies `bytes` to the start of a span: the host's are free again when it returns.
    pub fn upload(&self, bytes: &[u8], target: Span<'_>) -> Result<()> {
        target.check_writable();
        assert!(bytes.len() <= target.bytes(), "more bytes than the span has");
        on!(&self.processor, |gpu| gpu.write(bytes, target), {
            let _pass = crate::emulated::enter();
            crate::emulated::operate("a copy to the device")?;
            crate::emulated::upload(bytes, target);
            Ok(())
        })
    }

    /// Copies the start of a span to the host's memory, once all that was enqueued before is done.
    pub fn download(&self, source: Span<'_>, out: &mut [u8]) -> Result<()> {
        assert!(out.len() <= source.bytes(), "more bytes than the span has");
        on!(&self.processor, |gpu| gpu.download(source, out), {
            let _pass = crate::emulated::enter();
            crate::emulated::operate("a copy to the host")?;
            crate::emulated::download(source, out);
            Ok(())
        })
    }

    /// Enqueues a grid of a kernel that takes these arguments.
    pub(crate) fn launch(&self, kernel: &'static Kernel, grid: Grid, args: &impl Pod) -> Result<()> {
        if grid.blocks.contains(&0) {
            return Ok(());
        }
        let _pass = self.enter();
        self.enqueue(kernel, grid, args)?;
        self.settle(kernel.name)
    }

    fn enqueue(&self, kernel: &'static Kernel, grid: Grid, args: &impl Pod) -> Result<()> {
        on!(&self.processor, |gpu| gpu.launch(kernel, grid, args), {
            crate::emulated::launch(kernel, grid, bytemuck::bytes_of(args))
        })
    }

    /// Waits for what was launched, where each launch is to, and says that it was `kernel` where that failed. What is captured has not run.
    pub(crate) fn settle(&self, kernel: &'static str) -> Result<()> {
        if !is_synced() {
            return Ok(());
        }
        on!(
            &self.processor,
            |gpu| if gpu.is_captured_here() { Ok(()) } else { gpu.synchronize(kernel) },
            crate::emulated::synchronize(kernel),
        )
    }

    /// A list that a launch hands along.
    pub(crate) fn list<'a, T: Pod>(&self, items: &'a [T]) -> Result<Listed<'a, T>> {
        let near = List::near(items);
        if let (None, Some(recording)) = (&near, &self.recording) {
            let bytes = bytemuck::cast_slice(items);
            let address = recording.list(bytes, || {
                let mut memory = self.take(bytes.len())?;
                self.upload(bytes, memory.span())?;
                Ok(memory)
            })?;
            return Ok(Listed {
                list: List::far(address),
                _items: items,
                #[cfg(feature = "cuda")]
                _memory: None,
            });
        }
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

    /// Device memory for the length of a call. What is captured has it for as long as its graph.
    pub fn memory(&self, bytes: usize) -> Result<DeviceMemory> {
        let allocation = match &self.recording {
            Some(recording) => recording.memory(bytes, || self.take(bytes))?,
            None => self.take(bytes)?,
        };
        Ok(DeviceMemory::new(allocation, self.recording.clone()))
    }

    fn take(&self, bytes: usize) -> Result<Allocation> {
        on!(&self.processor, |gpu| Ok(Allocation::Gpu { memory: gpu.memory(bytes.max(1))?, bytes }), {
            let _pass = crate::emulated::enter();
            crate::emulated::allocate(bytes)?;
            Allocation::on_host(bytes)
        })
    }

    /// Whether what is launched here is repeated later: by a capture of this thread, or the run before it.
    #[must_use]
    pub fn is_recorded(&self) -> bool {
        self.recording.is_some()
            || on!(&self.processor, |gpu| gpu.is_captured_here(), crate::emulated::is_captured_here())
    }

    /// Bytes of the host's where the device can read them.
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

    /// Waits until all that was enqueued is done.
    pub fn synchronize(&self) -> Result<()> {
        on!(&self.processor, |gpu| gpu.synchronize("waiting for the device"), {
            let _pass = crate::emulated::enter();
            crate::emulated::synchronize("waiting for the device")
        })
    }

    /// Enqueues work of the caller's, which a replay does again: what a model computes between launches, where the CPU does it in a
    /// GPU's stead.
    #[cfg(feature = "emulate")]
    pub fn work(&self, work: impl Fn() + Send + 'static) {
        let _pass = self.enter();
        crate::emulated::work(Box::new(work));
    }

    /// The same stream, for a capture and the run before it.
    #[cfg(feature = "captured-steps")]
    pub(crate) fn recording(&self, recording: &Arc<Recording>) -> Stream {
        Stream { processor: self.processor.clone(), recording: Some(recording.clone()) }
    }

    /// The launches of `work`, which do not run.
    #[cfg(feature = "captured-steps")]
    pub(crate) fn record<E: From<crate::Error>>(
        &self,
        work: impl FnOnce() -> std::result::Result<(), E>,
    ) -> std::result::Result<crate::recording::Launches, E> {
        on!(
            &self.processor,
            |gpu| {
                let capturing = gpu.begin_capture()?;
                work()?;
                Ok(crate::recording::Launches::Gpu(capturing.end()?))
            },
            {
                let capturing = crate::emulated::begin_capture()?;
                work()?;
                Ok(crate::recording::Launches::Emulated(capturing.end()?))
            },
        )
    }

    /// How many multiprocessors work on a launch.
    pub(crate) fn multiprocessors(&self) -> usize {
        // As an H200 has.
        on!(&self.processor, |gpu| gpu.multiprocessors(), 132)
    }

    /// The shared memory of a block.
    pub(crate) fn shared_room(&self) -> SharedRoom {
        on!(
            &self.processor,
            |gpu| gpu.shared_room(),
            // As an H200 has.
            SharedRoom { most: 227 << 10, twice: 113 << 10 },
        )
    }
}
