//! One piece of a stream's memory.

use crate::error::{Error, Result};
use crate::span::Span;

/// Memory that holds anything until it is written to.
#[derive(Debug)]
pub(crate) enum Allocation {
    /// The CPU's, in units that are aligned as a GPU's memory is.
    Host { words: Vec<u128>, bytes: usize },
    #[cfg(feature = "cuda")]
    Gpu { memory: crate::gpu::Memory, bytes: usize },
}

impl Allocation {
    /// The CPU's memory.
    #[cfg_attr(not(feature = "emulate"), expect(dead_code, reason = "the CPU in a GPU's stead takes it"))]
    pub fn on_host(bytes: usize) -> Result<Self> {
        let (mut words, count) = (Vec::new(), bytes.div_ceil(size_of::<u128>()));
        words.try_reserve_exact(count).map_err(|_| Error::OutOfMemory { bytes: bytes as u64, free: 0, total: 0 })?;
        // What no kernel writes is no number.
        words.resize(count, u128::MAX);
        Ok(Allocation::Host { words, bytes })
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
            Allocation::Host { words, bytes } => Span::of_mut(&mut bytemuck::cast_slice_mut(words)[..*bytes]),
            #[cfg(feature = "cuda")]
            Allocation::Gpu { memory, .. } => memory.span(),
        }
    }
}
