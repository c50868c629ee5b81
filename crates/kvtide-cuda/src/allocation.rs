//! One allocation in the memory of a stream.

use crate::error::{Error, Result};
use crate::span::Span;

/// Memory with arbitrary content until it is written.
#[derive(Debug)]
pub(crate) enum Allocation {
    /// CPU memory, in units that are aligned like GPU memory.
    Host { memory: Vec<u128>, bytes: usize },
    #[cfg(feature = "cuda")]
    Gpu(crate::gpu::Memory),
}

impl Allocation {
    /// Allocates CPU memory.
    #[cfg_attr(not(feature = "emulate"), expect(dead_code, reason = "used only where the CPU stands in for a GPU"))]
    pub fn on_host(bytes: usize) -> Result<Self> {
        let (mut words, count) = (Vec::new(), bytes.div_ceil(size_of::<u128>()));
        words.try_reserve_exact(count).map_err(|_| Error::OutOfMemory { bytes: bytes as u64, free: 0, total: 0 })?;
        // Memory that no kernel writes is NaN.
        words.resize(count, u128::MAX);
        Ok(Allocation::Host { memory: words, bytes })
    }

    /// The memory, for writing.
    pub fn span(&mut self) -> Span<'_> {
        match self {
            Allocation::Host { memory, bytes } => Span::of_mut(&mut bytemuck::cast_slice_mut(memory)[..*bytes]),
            #[cfg(feature = "cuda")]
            Allocation::Gpu(memory) => memory.span(),
        }
    }
}
