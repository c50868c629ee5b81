//! Device memory for the duration of a call.

use crate::allocation::Allocation;
use crate::span::Span;

/// Memory with arbitrary content until it is written. It is freed when dropped, after the work that was enqueued before.
#[derive(Debug)]
pub struct DeviceMemory(Allocation);

impl DeviceMemory {
    pub(crate) fn new(allocation: Allocation) -> Self {
        DeviceMemory(allocation)
    }

    /// The memory, for writing.
    pub fn span(&mut self) -> Span<'_> {
        self.0.span()
    }
}

/// Host bytes that a stream's device can read: in place, or as a copy.
#[derive(Debug)]
pub struct Reached<'a> {
    pub(crate) host: &'a [u8],
    #[cfg(feature = "cuda")]
    pub(crate) copy: Option<crate::gpu::Memory>,
}

impl Reached<'_> {
    /// The memory, for reading.
    #[must_use]
    pub fn span(&self) -> Span<'_> {
        #[cfg(feature = "cuda")]
        if let Some(copy) = &self.copy {
            return copy.read_span();
        }
        Span::of(self.host)
    }
}
