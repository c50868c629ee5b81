//! Memory of a stream's device for the length of a call.

use std::sync::Arc;

use crate::allocation::Allocation;
use crate::recording::Recording;
use crate::span::Span;

/// Memory that holds anything until it is written to; it is given back when dropped, behind the work that was enqueued before.
#[derive(Debug)]
pub struct DeviceMemory {
    /// There until it is dropped.
    allocation: Option<Allocation>,
    /// What it goes back to, where a graph is to find it again.
    home: Option<Arc<Recording>>,
}

impl DeviceMemory {
    /// Memory of a call's own, or of a recording that gets it back.
    pub(crate) fn new(allocation: Allocation, home: Option<Arc<Recording>>) -> Self {
        DeviceMemory { allocation: Some(allocation), home }
    }

    /// The memory, to write to.
    pub fn span(&mut self) -> Span<'_> {
        self.allocation.as_mut().expect("memory that was not dropped").span()
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if let (Some(home), Some(allocation)) = (&self.home, self.allocation.take()) {
            home.take_back(allocation);
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
