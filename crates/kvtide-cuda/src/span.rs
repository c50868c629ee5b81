//! A piece of a device's memory.
#![expect(unsafe_code, reason = "whoever names memory by its address has to answer for it")]

use std::marker::PhantomData;

/// Bytes of a device's memory, as long as they are borrowed.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    address: u64,
    bytes: usize,
    is_writable: bool,
    memory: PhantomData<&'a [u8]>,
}

impl<'a> Span<'a> {
    /// The memory from `address` on; launches write only to what is writable.
    ///
    /// # Safety
    ///
    /// The bytes belong to the stream that it is used with until the work that was enqueued there is done; where a launch
    /// writes to them, nobody else reads or writes them other than through that stream.
    #[must_use]
    pub unsafe fn new(address: u64, bytes: usize, is_writable: bool) -> Self {
        Span { address, bytes, is_writable, memory: PhantomData }
    }

    /// The memory of a slice of a GPU's, as the stream knows it that candle uses there.
    #[cfg(feature = "cuda")]
    #[must_use]
    pub fn of_slice<T>(slice: &'a candle_core::cuda_backend::cudarc::driver::CudaSlice<T>, is_writable: bool) -> Self {
        use candle_core::cuda_backend::cudarc::driver::DevicePtr;
        // SAFETY: the slice's own memory; it is given back in the order of its stream, behind the work that is enqueued there.
        unsafe { Span::new(slice.device_ptr(slice.stream()).0, slice.num_bytes(), is_writable) }
    }

    /// Memory of the CPU, which the stream that stands in for a GPU reads.
    #[must_use]
    pub fn of(bytes: &'a [u8]) -> Self {
        // SAFETY: emulated launches are done when they return, and the bytes are borrowed for longer; they are not written to.
        unsafe { Span::new(bytes.as_ptr().expose_provenance() as u64, bytes.len(), false) }
    }

    /// The same, to write to.
    #[must_use]
    pub fn of_mut(bytes: &'a mut [u8]) -> Self {
        // SAFETY: as above, and nobody else has the bytes.
        unsafe { Span::new(bytes.as_mut_ptr().expose_provenance() as u64, bytes.len(), true) }
    }

    /// Its first byte.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// How many.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Refuses memory that may only be read.
    pub(crate) fn check_writable(&self) {
        assert!(self.is_writable, "a launch writes to memory that may only be read");
    }

    /// The part from a byte on.
    #[must_use]
    pub fn from(self, start: usize) -> Self {
        assert!(start <= self.bytes, "a part of a span");
        Span { address: self.address + start as u64, bytes: self.bytes - start, ..self }
    }
}
