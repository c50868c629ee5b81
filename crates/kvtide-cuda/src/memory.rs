//! Memory of a stream's device for the length of a call.

use crate::error::{Error, Result};
use crate::span::Span;

/// Memory that holds anything until it is written to; it is given back when dropped, behind the work that was enqueued before.
#[derive(Debug)]
pub struct DeviceMemory {
    pub(crate) kept: Kept,
    pub(crate) bytes: usize,
}

#[derive(Debug)]
pub(crate) enum Kept {
    /// The CPU's, in units that are aligned as a GPU's memory is.
    Host(Vec<u128>),
    #[cfg(feature = "cuda")]
    Gpu(crate::gpu::Memory),
}

impl DeviceMemory {
    /// The CPU's memory.
    #[cfg_attr(not(feature = "emulate"), expect(dead_code, reason = "the CPU in a GPU's stead takes it"))]
    pub(crate) fn of_host(bytes: usize) -> Result<Self> {
        let (mut words, count) = (Vec::new(), bytes.div_ceil(size_of::<u128>()));
        words.try_reserve_exact(count).map_err(|_| Error::OutOfMemory { bytes })?;
        // What no kernel writes is no number.
        words.resize(count, u128::MAX);
        Ok(DeviceMemory { kept: Kept::Host(words), bytes })
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
