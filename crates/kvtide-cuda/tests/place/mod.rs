//! The place where test kernels run: a GPU if this build and the machine have one, else the CPU that stands in for it.
//!
//! ```text
//! stream()                 Stream::gpu(cuda:0)        or   Stream::emulated()
//! Memory::new(bytes, skew) an allocation of the GPU   or   words of the host, `skew` bytes behind a multiple of 16
//!   span(), span_mut()     what launches are given
//!   bytes()                a copy, behind all that was enqueued
//! ```
//!
//! A build with `cuda` alone runs on a GPU or not at all; in a build with both, `KVTIDE_DEVICE=cpu` hides the GPU.

use kvtide_cuda::{Span, Stream};

/// The stream that all tests of this process share.
pub fn stream() -> Stream {
    #[cfg(feature = "cuda")]
    if let Some(device) = gpu::device() {
        return Stream::gpu(device);
    }
    #[cfg(feature = "emulate")]
    return Stream::emulated();
    #[cfg(not(feature = "emulate"))]
    panic!("these tests need a GPU: this build has no CPU that stands in for one");
}

/// Random cases of a test: `KVTIDE_CASES` asks for fewer where each access is checked.
pub fn cases() -> u32 {
    std::env::var("KVTIDE_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(400)
}

/// Memory that launches read and write.
pub struct Memory(Held);

enum Held {
    Host {
        words: Vec<u128>,
        skew: usize,
        len: usize,
    },
    #[cfg(feature = "cuda")]
    Gpu(gpu::Bytes),
}

impl Memory {
    /// A copy of `content` whose first byte lies `skew` bytes behind a multiple of 16, so that each unit comes up.
    pub fn new(content: &[u8], skew: usize) -> Self {
        #[cfg(feature = "cuda")]
        if let Some(device) = gpu::device() {
            return Memory(Held::Gpu(gpu::Bytes::new(device, content, skew)));
        }
        // Floats around it would be no numbers.
        let mut words = vec![u128::MAX; content.len().div_ceil(16) + 1];
        bytemuck::cast_slice_mut(&mut words)[skew..skew + content.len()].copy_from_slice(content);
        Memory(Held::Host { words, skew, len: content.len() })
    }

    /// A copy of its bytes.
    pub fn bytes(&self) -> Vec<u8> {
        match &self.0 {
            Held::Host { words, skew, len } => bytemuck::cast_slice(words)[*skew..skew + len].to_vec(),
            #[cfg(feature = "cuda")]
            Held::Gpu(bytes) => {
                let mut out = vec![0; bytes.len];
                stream().download(bytes.span(false), &mut out).expect("a copy to the host");
                out
            }
        }
    }

    /// To read.
    pub fn span(&self) -> Span<'_> {
        match &self.0 {
            Held::Host { words, skew, len } => Span::of(&bytemuck::cast_slice(words)[*skew..skew + len]),
            #[cfg(feature = "cuda")]
            Held::Gpu(bytes) => bytes.span(false),
        }
    }

    /// To write.
    pub fn span_mut(&mut self) -> Span<'_> {
        match &mut self.0 {
            Held::Host { words, skew, len } => Span::of_mut(&mut bytemuck::cast_slice_mut(words)[*skew..*skew + *len]),
            #[cfg(feature = "cuda")]
            Held::Gpu(bytes) => bytes.span(true),
        }
    }
}

#[cfg(feature = "cuda")]
mod gpu {
    //! Memory of the first GPU.
    #![expect(unsafe_code, reason = "turning off candle's bookkeeping of streams is marked unsafe")]

    use std::panic::catch_unwind;
    use std::sync::OnceLock;

    use candle_core::CudaDevice;
    use candle_core::cuda_backend::cudarc::driver::CudaSlice;
    use kvtide_cuda::Span;

    /// The first GPU, opened once; none where it cannot be used or is not wanted.
    pub fn device() -> Option<&'static CudaDevice> {
        static DEVICE: OnceLock<Option<CudaDevice>> = OnceLock::new();
        DEVICE.get_or_init(open).as_ref()
    }

    fn open() -> Option<CudaDevice> {
        if std::env::var_os("KVTIDE_DEVICE").is_some_and(|wanted| wanted == "cpu") {
            return None;
        }
        // Where there is no driver at all, libraries that candle calls may panic.
        let device = catch_unwind(|| CudaDevice::new_with_stream(0)).ok()?.ok()?;
        // SAFETY: the process has this one stream, and all memory is used through it.
        unsafe { device.disable_event_tracking() };
        Some(device)
    }

    /// An allocation, and where its content begins.
    pub struct Bytes {
        slice: CudaSlice<u8>,
        skew: usize,
        pub len: usize,
    }

    impl Bytes {
        pub fn new(device: &CudaDevice, content: &[u8], skew: usize) -> Self {
            // An allocation has at least one byte, and begins at a multiple of 256.
            let mut whole = vec![0; (skew + content.len()).max(1)];
            whole[skew..skew + content.len()].copy_from_slice(content);
            Bytes { slice: device.clone_htod(&whole).expect("memory of the GPU"), skew, len: content.len() }
        }

        pub fn span(&self, is_writable: bool) -> Span<'_> {
            Span::of_slice(&self.slice, is_writable).from(self.skew)
        }
    }
}
