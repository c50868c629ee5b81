//! A borrowed range of device memory.
#![expect(unsafe_code, reason = "a caller that gives an address is responsible for it")]

use std::marker::PhantomData;

/// Bytes of device memory, for as long as they are borrowed.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    address: u64,
    bytes: usize,
    is_writable: bool,
    memory: PhantomData<&'a [u8]>,
}

impl<'a> Span<'a> {
    /// The memory from `address` on; launches write only to writable spans.
    ///
    /// # Safety
    ///
    /// The bytes must belong to the stream with which the span is used until the work enqueued there is done. If a launch
    /// writes to them, they must not be read or written otherwise than through that stream.
    #[must_use]
    pub unsafe fn new(address: u64, bytes: usize, is_writable: bool) -> Self {
        Span { address, bytes, is_writable, memory: PhantomData }
    }

    /// The memory of a GPU slice, on the stream that candle uses for it.
    #[cfg(feature = "cuda")]
    #[must_use]
    pub fn of_slice<T>(slice: &'a candle_core::cuda_backend::cudarc::driver::CudaSlice<T>, is_writable: bool) -> Self {
        use candle_core::cuda_backend::cudarc::driver::DevicePtr;
        // SAFETY: this is the slice's own memory, which is freed in the order of its stream, after the work that is enqueued
        // there.
        unsafe { Span::new(slice.device_ptr(slice.stream()).0, slice.num_bytes(), is_writable) }
    }

    /// CPU memory, which the stream that stands in for a GPU can read.
    #[must_use]
    pub fn of(bytes: &'a [u8]) -> Self {
        // SAFETY: emulated launches are done when they return, and the bytes are borrowed for longer; they are not written
        // to.
        unsafe { Span::new(bytes.as_ptr().expose_provenance() as u64, bytes.len(), false) }
    }

    /// CPU memory, for writing.
    #[must_use]
    pub fn of_mut(bytes: &'a mut [u8]) -> Self {
        // SAFETY: as above, and the bytes are borrowed exclusively.
        unsafe { Span::new(bytes.as_mut_ptr().expose_provenance() as u64, bytes.len(), true) }
    }

    /// The address of its first byte.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The number of bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Panics if the memory is read-only.
    pub(crate) fn check_writable(&self) {
        assert!(self.is_writable, "a launch writes to read-only memory");
    }

    /// The part from byte `start` on.
    #[must_use]
    pub fn from(self, start: usize) -> Self {
        assert!(start <= self.bytes, "a part of a span");
        Span { address: self.address + start as u64, bytes: self.bytes - start, ..self }
    }
}
