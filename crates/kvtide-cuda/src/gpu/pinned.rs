//! Copies between the host and a GPU through pinned memory, which the GPU accesses directly.
//!
//! ```text
//! in    piece [ list | rows | ... ]     a ring (ring.rs), filled from the front, each piece with an event after its copies
//! out   two pieces                      one is in flight while the previous one is copied out
//! ```
//!
//! A copy to the device returns as soon as its bytes are in the ring; the stream is not interrupted. The ring grows to 256
//! MiB before a copy waits for the device, so that appending a long prompt does not stop its thread until all work of the
//! GPU is done. A copy to the host waits. Each GPU has its own ring and pair, and copies to it never wait for reads from it
//! on another thread.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::cuda_backend::cudarc::driver::{CudaEvent, CudaStream, DriverError, PinnedHostSlice, result};

use crate::ring::{Ring, RingPiece};

/// The bytes of a piece.
const PIECE: usize = 4 << 20;

/// The most pieces of a ring.
const PIECES_MAX: usize = 64;

/// Copies begin at multiples of this in a piece.
const ALIGNMENT: usize = 64;

/// A piece of pinned memory.
struct Pinned {
    memory: PinnedHostSlice<u8>,
    /// The event after the copies that were enqueued from or to it.
    done: CudaEvent,
    stream: Arc<CudaStream>,
}

/// The pinned memory of a GPU.
struct Staging {
    ring: Mutex<Ring<Pinned>>,
    /// For copies to the host; allocated by the first one.
    pair: Mutex<Option<[Pinned; 2]>>,
}

/// The staging memory of each context, by its address: contexts live as long as the process.
static ALL: Mutex<Option<HashMap<usize, Arc<Staging>>>> = Mutex::new(None);

/// Enqueues a copy of `bytes` to a GPU address.
pub(super) fn copy_in(stream: &Arc<CudaStream>, bytes: &[u8], target: u64) -> Result<(), DriverError> {
    let staging = staging_of(stream)?;
    let mut ring = staging.ring.lock().unwrap_or_else(PoisonError::into_inner);
    for (place, bytes) in bytes.chunks(PIECE).enumerate() {
        let (piece, start) = ring.room(bytes.len(), ALIGNMENT, || Pinned::new(stream))?;
        let staged = &mut piece.bytes()[start..start + bytes.len()];
        staged.copy_from_slice(bytes);
        // SAFETY: the target has room for all bytes, as its span guarantees; the piece is not filled again before `done`.
        unsafe { result::memcpy_htod_async(target + (place * PIECE) as u64, staged, stream.cu_stream()) }?;
    }
    Ok(())
}

/// Copies from a GPU address, after all previously enqueued work is done.
pub(super) fn copy_out(stream: &Arc<CudaStream>, source: u64, out: &mut [u8]) -> Result<(), DriverError> {
    let staging = staging_of(stream)?;
    let mut pair = staging.pair.lock().unwrap_or_else(PoisonError::into_inner);
    let pair = match &mut *pair {
        Some(pair) => pair,
        none => none.insert([Pinned::new(stream)?, Pinned::new(stream)?]),
    };
    let mut before: Option<(usize, &mut [u8])> = None;
    for (place, out) in out.chunks_mut(PIECE).enumerate() {
        let piece = &mut pair[place % 2];
        let staged = &mut piece.bytes()[..out.len()];
        // SAFETY: the source has as many bytes, as its span guarantees; the piece is not read before `done`, and its
        // previous content was already copied out.
        unsafe { result::memcpy_dtoh_async(staged, source + (place * PIECE) as u64, stream.cu_stream()) }?;
        piece.close()?;
        if let Some((before, out)) = before.replace((place % 2, out)) {
            pair[before].fetch(out)?;
        }
    }
    before.map_or(Ok(()), |(piece, out)| pair[piece].fetch(out))
}

impl Pinned {
    fn new(stream: &Arc<CudaStream>) -> Result<Self, DriverError> {
        // SAFETY: bytes have no invalid values; unwritten ones are not read.
        let memory = unsafe { stream.context().alloc_pinned_with_flags::<u8>(PIECE, 0) }?;
        Ok(Pinned { memory, done: stream.context().new_event(None)?, stream: stream.clone() })
    }

    /// All its bytes; the caller must not touch those of a copy in flight.
    fn bytes(&mut self) -> &mut [u8] {
        // cudarc waits here for an event of its own, which is never recorded.
        self.memory.as_mut_slice().expect("an event that was never recorded has come")
    }

    /// Waits for the copy to it, and copies its start to `out`.
    fn fetch(&mut self, out: &mut [u8]) -> Result<(), DriverError> {
        self.wait()?;
        let bytes = out.len();
        out.copy_from_slice(&self.bytes()[..bytes]);
        Ok(())
    }
}

impl RingPiece for Pinned {
    type Error = DriverError;

    fn close(&mut self) -> Result<(), DriverError> {
        self.done.record(&self.stream)
    }

    fn is_done(&self) -> Result<bool, DriverError> {
        self.done.try_is_complete()
    }

    fn wait(&self) -> Result<(), DriverError> {
        self.done.synchronize()
    }
}

fn staging_of(stream: &Arc<CudaStream>) -> Result<Arc<Staging>, DriverError> {
    stream.context().bind_to_thread()?;
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    let made = || Arc::new(Staging { ring: Mutex::new(Ring::new(PIECE, PIECES_MAX)), pair: Mutex::new(None) });
    Ok(all.get_or_insert_default().entry(Arc::as_ptr(stream.context()).addr()).or_insert_with(made).clone())
}
