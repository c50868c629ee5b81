//! Memory of a stream's device for the length of a call.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::recording::Recording;
use crate::span::Span;

/// Memory that holds anything until it is written to; it is given back when dropped, behind the work that was enqueued before.
#[derive(Debug)]
pub struct DeviceMemory {
    kept: Kept,
    bytes: usize,
    /// What it goes back to, where a graph is to find it again.
    home: Option<Arc<Recording>>,
}

#[derive(Debug)]
enum Kept {
    /// The CPU's, in units that are aligned as a GPU's memory is.
    Host(Vec<u128>),
    #[cfg(feature = "cuda")]
    Gpu(crate::gpu::Memory),
}

impl DeviceMemory {
    /// A GPU's memory.
    #[cfg(feature = "cuda")]
    pub(crate) fn of_gpu(memory: crate::gpu::Memory, bytes: usize) -> Self {
        DeviceMemory { kept: Kept::Gpu(memory), bytes, home: None }
    }

    /// How many bytes there are.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The same, kept by a recording once it is dropped.
    pub(crate) fn lent_by(mut self, recording: &Arc<Recording>) -> Self {
        self.home = Some(recording.clone());
        self
    }

    /// The CPU's memory.
    #[cfg_attr(not(feature = "emulate"), expect(dead_code, reason = "the CPU in a GPU's stead takes it"))]
    pub(crate) fn of_host(bytes: usize) -> Result<Self> {
        let (mut words, count) = (Vec::new(), bytes.div_ceil(size_of::<u128>()));
        words.try_reserve_exact(count).map_err(|_| Error::OutOfMemory { bytes: bytes as u64, free: 0, total: 0 })?;
        // What no kernel writes is no number.
        words.resize(count, u128::MAX);
        Ok(DeviceMemory { kept: Kept::Host(words), bytes, home: None })
    }

    /// The memory, to write to.
    pub fn span(&mut self) -> Span<'_> {
        match &mut self.kept {
            Kept::Host(words) => Span::of_mut(&mut bytemuck::cast_slice_mut(words)[..self.bytes]),
            #[cfg(feature = "cuda")]
            Kept::Gpu(memory) => memory.span(),
        }
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if let Some(home) = self.home.take() {
            let kept = std::mem::replace(&mut self.kept, Kept::Host(Vec::new()));
            home.take_back(DeviceMemory { kept, bytes: self.bytes, home: None });
        }
    }
}

/// Bytes of the host's where a stream's device can read them: in place, or a copy.
#[derive(Debug)]
pub struct Reached<'a> {
    pub(crate) host: &'a [u8],
    #[cfg(feature = "cuda")]
    pub(crate) copy: Option<crate::gpu::Memory>,
}

impl Reached<'_> {
    /// The memory, to read from.
    #[must_use]
    pub fn span(&self) -> Span<'_> {
        #[cfg(feature = "cuda")]
        if let Some(copy) = &self.copy {
            return copy.read_span();
        }
        Span::of(self.host)
    }
}
