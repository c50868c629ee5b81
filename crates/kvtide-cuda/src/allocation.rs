//! One piece of a stream's memory.

use crate::error::{Error, Result};
use crate::span::Span;

/// Memory that holds anything until it is written to.
#[derive(Debug)]
pub(crate) enum Allocation {
    /// The CPU's, in units that are aligned as a GPU's memory is.
    Host { memory: HostMemory, bytes: usize },
    #[cfg(feature = "cuda")]
    Gpu { memory: crate::gpu::Memory, bytes: usize },
}

/// The CPU's memory in a GPU's stead, given back as a GPU's is.
#[derive(Debug)]
pub(crate) struct HostMemory(Vec<u128>);

#[cfg(feature = "emulate")]
impl Drop for HostMemory {
    fn drop(&mut self) {
        crate::emulated::give_back(std::mem::take(&mut self.0));
    }
}

impl Allocation {
    /// The CPU's memory.
    #[cfg_attr(not(feature = "emulate"), expect(dead_code, reason = "the CPU in a GPU's stead takes it"))]
    pub fn on_host(bytes: usize) -> Result<Self> {
        let (mut words, count) = (Vec::new(), bytes.div_ceil(size_of::<u128>()));
        words.try_reserve_exact(count).map_err(|_| Error::OutOfMemory { bytes: bytes as u64, free: 0, total: 0 })?;
        // What no kernel writes is no number.
        words.resize(count, u128::MAX);
        Ok(Allocation::Host { memory: HostMemory(words), bytes })
    }

    /// How many bytes there are.
    pub fn bytes(&self) -> usize {
        match self {
            Allocation::Host { bytes, .. } => *bytes,
            #[cfg(feature = "cuda")]
            Allocation::Gpu { bytes, .. } => *bytes,
        }
    }

    /// The memory, to write to.
    pub fn span(&mut self) -> Span<'_> {
        match self {
            Allocation::Host { memory, bytes } => Span::of_mut(&mut bytemuck::cast_slice_mut(&mut memory.0)[..*bytes]),
            #[cfg(feature = "cuda")]
            Allocation::Gpu { memory, .. } => memory.span(),
        }
    }
}
