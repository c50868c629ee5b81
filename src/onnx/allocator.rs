//! The memory of sessions on Linux, in huge pages: a token reads all weights, and with pages of 4 KiB the processor looks up an
//! address for each of these pages.
//!
//! ```text
//! below 64 KiB   the system's allocator
//! from 64 KiB    holes of chunks, first fit      a chunk has at least 32 MiB, and is freed once it is empty
//! ```
//!
//! If all weights are elsewhere, the logits of a token are alone in a chunk. A pin, a block that is not used, keeps the chunk
//! for the next token: taking it anew costs two calls of the system and the zeroing of a huge page. The pin goes with the next
//! large block, so that what a long prompt took is given back.
//!
//! All sessions share it: onnxruntime keeps one allocator for each process. On other systems sessions use the library's own.
//!
//! The library expects an exception if there is no memory, and some of its code does not check for null. So its own
//! allocator is asked last, and throws through `allocate`.
#![expect(unsafe_code, reason = "memory is given to a C library")]

use std::alloc::{Layout, alloc, dealloc};
use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};
use std::sync::{Mutex, PoisonError};

use kvtide_tensor::runtime::Chunks;

use super::api::{self, Allocator, AllocatorTable, MemoryInfo, number};
use super::library::Library;
use crate::border::refusal::Outcome;

/// The size from which memory comes from chunks.
const LARGE: usize = 64 << 10;
/// The size from which a block does not keep its chunk, and ends the keeping of another: a huge page.
const PINNED_MAX: usize = 2 << 20;
/// The alignment of all memory, as the library's own has it; the bytes before a block that say what it is.
const ALIGNMENT: usize = 64;

/// Stored before each block.
#[derive(Clone, Copy)]
#[repr(C)]
struct Header {
    /// All bytes of the block, with this header.
    bytes: usize,
    source: Source,
}

#[derive(Clone, Copy)]
#[repr(C)]
enum Source {
    System,
    Chunks,
    /// The library's own allocator.
    Library,
}

/// The allocator. The library keeps its address for ever.
#[repr(C)]
pub(super) struct SessionMemory {
    /// The first field, so that a pointer to it is a pointer to the whole struct.
    table: AllocatorTable,
    info: *const MemoryInfo,
    own: *mut Allocator,
    chunks: Mutex<Pinned>,
}

/// Chunks, of which one may be kept although it is empty.
#[derive(Default)]
struct Pinned {
    chunks: Chunks,
    /// The block that keeps it.
    pin: Option<NonNull<u8>>,
}

// SAFETY: the block belongs to the chunks, not to a thread.
unsafe impl Send for Pinned {}

impl Pinned {
    fn take(&mut self, bytes: usize) -> Option<NonNull<u8>> {
        let opens = self.chunks.is_empty();
        let block = self.chunks.take(bytes)?;
        if opens && bytes < PINNED_MAX {
            self.pin = self.chunks.take(ALIGNMENT);
        }
        Some(block)
    }

    fn give_back(&mut self, block: NonNull<u8>, bytes: usize) {
        self.chunks.give_back(block, bytes);
        if let Some(pin) = self.pin.take_if(|_| bytes >= PINNED_MAX) {
            self.chunks.give_back(pin, ALIGNMENT);
        }
    }
}

impl SessionMemory {
    /// Registers the allocator with a library, for all sessions that ask for it.
    pub fn register(library: &Library) -> Outcome<()> {
        let api = &library.api;
        // SAFETY: the output pointers point to locals.
        let info = library
            .make(|out| unsafe { (api.create_cpu_memory)(number::DEVICE_ALLOCATOR, number::DEFAULT_MEMORY, out) })?;
        // SAFETY: as above.
        let own = library.make(|out| unsafe { (api.default_allocator)(out) })?;
        let table = AllocatorTable { version: api::VERSION, alloc: allocate, free, info: info_of };
        let memory = Box::leak(Box::new(Self { table, info, own, chunks: Mutex::default() }));
        // SAFETY: the allocator lives as long as the process.
        library.check(unsafe { (api.register_allocator)(library.env, std::ptr::from_mut(memory).cast()) })
    }

    /// A block with a header, without the library's help.
    fn block(&self, bytes: usize) -> Option<NonNull<u8>> {
        let bytes = bytes.checked_add(ALIGNMENT)?.checked_next_multiple_of(ALIGNMENT)?;
        let (block, source) = if bytes < LARGE {
            // SAFETY: the layout has at least the bytes of the header.
            (NonNull::new(unsafe { alloc(Layout::from_size_align(bytes, ALIGNMENT).ok()?) })?, Source::System)
        } else {
            (self.chunks.lock().unwrap_or_else(PoisonError::into_inner).take(bytes)?, Source::Chunks)
        };
        Some(begin(block, Header { bytes, source }))
    }
}

/// Writes the header, and returns the memory behind it.
fn begin(block: NonNull<u8>, header: Header) -> NonNull<u8> {
    // SAFETY: the block is aligned to, and longer than, the bytes that the header takes.
    unsafe {
        block.cast::<Header>().write(header);
        block.add(ALIGNMENT)
    }
}

unsafe extern "C-unwind" fn allocate(memory: *mut Allocator, bytes: usize) -> *mut c_void {
    if bytes == 0 {
        return null_mut();
    }
    // SAFETY: the library passes the pointer that it was given.
    let memory = unsafe { &*memory.cast::<SessionMemory>() };
    if let Some(block) = memory.block(bytes) {
        return block.as_ptr().cast();
    }
    // SAFETY: the library's allocator has such a table, too. It throws, or returns as many bytes.
    let block = unsafe { ((*memory.own.cast::<AllocatorTable>()).alloc)(memory.own, bytes.saturating_add(ALIGNMENT)) };
    match NonNull::new(block.cast()) {
        Some(block) => begin(block, Header { bytes: 0, source: Source::Library }).as_ptr().cast(),
        None => null_mut(),
    }
}

unsafe extern "C-unwind" fn free(memory: *mut Allocator, given: *mut c_void) {
    let Some(given) = NonNull::new(given.cast::<u8>()) else { return };
    // SAFETY: the library passes the pointer that it was given, and memory that `allocate` returned, once.
    unsafe {
        let memory = &*memory.cast::<SessionMemory>();
        let block = given.sub(ALIGNMENT);
        let Header { bytes, source } = block.cast::<Header>().read();
        match source {
            Source::System => dealloc(block.as_ptr(), Layout::from_size_align_unchecked(bytes, ALIGNMENT)),
            Source::Chunks => memory.chunks.lock().unwrap_or_else(PoisonError::into_inner).give_back(block, bytes),
            Source::Library => ((*memory.own.cast::<AllocatorTable>()).free)(memory.own, block.as_ptr().cast()),
        }
    }
}

unsafe extern "C-unwind" fn info_of(memory: *const Allocator) -> *const MemoryInfo {
    // SAFETY: the library passes the pointer that it was given.
    unsafe { (*memory.cast::<SessionMemory>()).info }
}
