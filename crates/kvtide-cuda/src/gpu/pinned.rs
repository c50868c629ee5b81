//! Copies between the host and a GPU through memory that the GPU reaches by itself.
//!
//! ```text
//! chunk 0  [ list | rows | ... ]     filled from the front; when it is full an event marks the end of its copies
//! chunk 1  [ ............ ]          and the next one is filled, once its own event has come
//! ```
//!
//! A copy to the device returns as soon as its bytes are in a chunk; the stream goes on without a stop. A copy to the host waits,
//! and is cut so that one chunk is on its way while the one before is copied out. There is a pair of chunks for each GPU and each
//! direction: who copies to a GPU never waits for someone who reads from it on another thread.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::cuda_backend::cudarc::driver::{CudaEvent, CudaStream, DriverError, PinnedHostSlice, result};

/// Bytes of a chunk.
const CHUNK: usize = 4 << 20;

/// Where a copy begins in a chunk: at a multiple of this.
const ALIGNMENT: usize = 64;

/// A chunk, and how far it is filled.
struct Chunk {
    memory: PinnedHostSlice<u8>,
    /// The end of the copies that were enqueued from or to it.
    done: CudaEvent,
    used: usize,
}

/// The chunks of a GPU.
struct Chunks {
    chunks: [Chunk; 2],
    current: usize,
}

/// Which way copies go.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Way {
    In,
    Out,
}

/// Those of each context and way: contexts are known by their addresses, since they live as long as the process.
type Known = HashMap<(usize, Way), Arc<Mutex<Chunks>>>;

static ALL: Mutex<Option<Known>> = Mutex::new(None);

/// Enqueues a copy of `bytes` to an address of the GPU.
pub(super) fn copy_in(stream: &Arc<CudaStream>, bytes: &[u8], target: u64) -> Result<(), DriverError> {
    let chunks = chunks_of(stream, Way::In)?;
    let mut chunks = chunks.lock().unwrap_or_else(PoisonError::into_inner);
    for (piece, bytes) in bytes.chunks(CHUNK).enumerate() {
        let start = chunks.room(stream, bytes.len())?;
        let chunk = chunks.current();
        let staged = &mut chunk.bytes()[start..start + bytes.len()];
        staged.copy_from_slice(bytes);
        // SAFETY: the target has room for all bytes, which its span has shown; the chunk is not filled again before `done`.
        unsafe { result::memcpy_htod_async(target + (piece * CHUNK) as u64, staged, stream.cu_stream()) }?;
    }
    Ok(())
}

/// Copies from an address of the GPU, once all that was enqueued before is done.
pub(super) fn copy_out(stream: &Arc<CudaStream>, source: u64, out: &mut [u8]) -> Result<(), DriverError> {
    let chunks = chunks_of(stream, Way::Out)?;
    let mut chunks = chunks.lock().unwrap_or_else(PoisonError::into_inner);
    let mut before: Option<(usize, &mut [u8])> = None;
    for (piece, out) in out.chunks_mut(CHUNK).enumerate() {
        chunks.next(stream)?;
        let chunk = chunks.current();
        let staged = &mut chunk.bytes()[..out.len()];
        // SAFETY: the source has as many bytes, which its span has shown; the chunk is not read before `done`.
        unsafe { result::memcpy_dtoh_async(staged, source + (piece * CHUNK) as u64, stream.cu_stream()) }?;
        chunk.done.record(stream)?;
        chunk.used = CHUNK;
        let current = chunks.current;
        if let Some((chunk, out)) = before.replace((current, out)) {
            chunks.chunks[chunk].fetch(out)?;
        }
    }
    before.map_or(Ok(()), |(chunk, out)| chunks.chunks[chunk].fetch(out))
}

impl Chunks {
    fn new(stream: &Arc<CudaStream>) -> Result<Self, DriverError> {
        let chunk = || {
            // SAFETY: bytes have no invalid values; what was not written is not read.
            let memory = unsafe { stream.context().alloc_pinned_with_flags::<u8>(CHUNK, 0) }?;
            Ok(Chunk { memory, done: stream.context().new_event(None)?, used: 0 })
        };
        Ok(Chunks { chunks: [chunk()?, chunk()?], current: 0 })
    }

    fn current(&mut self) -> &mut Chunk {
        &mut self.chunks[self.current]
    }

    /// Room for a copy in the present chunk, or in the next one: its first byte.
    fn room(&mut self, stream: &Arc<CudaStream>, bytes: usize) -> Result<usize, DriverError> {
        if self.current().used.next_multiple_of(ALIGNMENT) + bytes > CHUNK {
            self.next(stream)?;
        }
        let chunk = self.current();
        let start = chunk.used.next_multiple_of(ALIGNMENT);
        chunk.used = start + bytes;
        Ok(start)
    }

    /// Goes on to the next chunk, once nothing is copied from it any more.
    fn next(&mut self, stream: &Arc<CudaStream>) -> Result<(), DriverError> {
        self.current().done.record(stream)?;
        self.current = 1 - self.current;
        let chunk = self.current();
        chunk.done.synchronize()?;
        chunk.used = 0;
        Ok(())
    }
}

impl Chunk {
    /// All its bytes; those that a copy is under way with are left alone.
    fn bytes(&mut self) -> &mut [u8] {
        // cudarc waits for an event of its own here, which nobody records.
        self.memory.as_mut_slice().expect("an event that was never recorded has come")
    }

    /// Waits for the copy to it, and copies its start to `out`.
    fn fetch(&mut self, out: &mut [u8]) -> Result<(), DriverError> {
        self.done.synchronize()?;
        let bytes = out.len();
        out.copy_from_slice(&self.bytes()[..bytes]);
        self.used = 0;
        Ok(())
    }
}

fn chunks_of(stream: &Arc<CudaStream>, way: Way) -> Result<Arc<Mutex<Chunks>>, DriverError> {
    stream.context().bind_to_thread()?;
    let key = (Arc::as_ptr(stream.context()).addr(), way);
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    let all = all.get_or_insert_default();
    if let Some(known) = all.get(&key) {
        return Ok(known.clone());
    }
    let chunks = Arc::new(Mutex::new(Chunks::new(stream)?));
    all.insert(key, chunks.clone());
    Ok(chunks)
}
