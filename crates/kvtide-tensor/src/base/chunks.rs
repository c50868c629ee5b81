//! Large memory in huge pages, for a library that asks for many blocks.
//!
//! ```text
//! chunk    32 MiB, or as much as one block needs; freed once it is empty
//! block    the first hole that is long enough
//! hole     a free range; neighbours are joined
//! ```
//!
//! The memory is not zeroed. `O(chunks + holes)` for a block. [`HugeVec`] is a list in such memory, which all lists share.
#![expect(unsafe_code, reason = "memory is allocated without a type, and its owner writes to it")]

use std::alloc::{Layout, alloc, dealloc};
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::Mutex;

use bytemuck::Pod;

use super::lock::lock;
use super::zeroed::advise_huge_pages;

/// The size of an ordinary chunk, a multiple of a huge page.
const CHUNK: usize = 32 << 20;
const HUGE_PAGE: usize = 2 << 20;

/// Blocks of memory in chunks. Blocks that are not given back are freed with the chunks.
#[derive(Debug, Default)]
pub struct Chunks(Vec<Chunk>);

#[derive(Debug)]
struct Chunk {
    start: NonNull<u8>,
    layout: Layout,
    /// The free ranges, in ascending order; none touches the next one.
    holes: Vec<Range<usize>>,
}

// SAFETY: the memory belongs to its chunk, not to a thread.
unsafe impl Send for Chunk {}

impl Chunks {
    /// True if no block is taken.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes a block, aligned as its own size and those of all other blocks are. `None` if there is no memory for it.
    pub fn take(&mut self, bytes: usize) -> Option<NonNull<u8>> {
        if bytes == 0 {
            return None;
        }
        if let Some(block) = self.0.iter_mut().find_map(|chunk| chunk.take(bytes)) {
            return Some(block);
        }
        self.0.try_reserve(1).ok()?;
        let mut chunk = Chunk::new(bytes)?;
        let block = chunk.take(bytes);
        self.0.push(chunk);
        block
    }

    /// Takes a block of `bytes` back, once. One empty chunk of the ordinary size stays as long as others are in use.
    pub fn give_back(&mut self, block: NonNull<u8>, bytes: usize) {
        let Some(at) = self.0.iter().position(|chunk| chunk.place(block).is_some()) else { return };
        self.0[at].give_back(block, bytes);
        if !self.0[at].is_empty() {
            return;
        }
        let has_spare = self.0.iter().enumerate().any(|(place, chunk)| place != at && chunk.is_empty());
        if has_spare || self.0[at].layout.size() > CHUNK {
            self.0.swap_remove(at);
        }
        if self.0.iter().all(Chunk::is_empty) {
            self.0.clear();
        }
    }
}

impl Chunk {
    fn new(bytes: usize) -> Option<Self> {
        let size = bytes.checked_next_multiple_of(HUGE_PAGE)?.max(CHUNK);
        let layout = Layout::from_size_align(size, HUGE_PAGE).ok()?;
        let mut holes = Vec::new();
        holes.try_reserve(16).ok()?;
        holes.push(0..size);
        // SAFETY: the size is not zero.
        let start = NonNull::new(unsafe { alloc(layout) })?;
        advise_huge_pages(start.as_ptr(), size);
        Some(Self { start, layout, holes })
    }

    fn is_empty(&self) -> bool {
        self.holes.first().is_some_and(|hole| *hole == (0..self.layout.size()))
    }

    /// The offset of a block, if it is in this chunk.
    fn place(&self, block: NonNull<u8>) -> Option<usize> {
        let offset = block.addr().get().checked_sub(self.start.addr().get())?;
        (offset < self.layout.size()).then_some(offset)
    }

    fn take(&mut self, bytes: usize) -> Option<NonNull<u8>> {
        let at = self.holes.iter().position(|hole| hole.len() >= bytes)?;
        let hole = &mut self.holes[at];
        let offset = hole.start;
        hole.start += bytes;
        if hole.start == hole.end {
            self.holes.remove(at);
        }
        // SAFETY: the hole is within the chunk.
        Some(unsafe { self.start.add(offset) })
    }

    fn give_back(&mut self, block: NonNull<u8>, bytes: usize) {
        let Some(start) = self.place(block) else { return };
        let end = start + bytes;
        let at = self.holes.partition_point(|hole| hole.start < start);
        let joins_next = self.holes.get(at).is_some_and(|hole| hole.start == end);
        match at.checked_sub(1).filter(|&before| self.holes[before].end == start) {
            Some(before) if joins_next => self.holes[before].end = self.holes.remove(at).end,
            Some(before) => self.holes[before].end = end,
            None if joins_next => self.holes[at].start = start,
            // Without memory for the note, the hole is lost until its chunk is freed.
            None if self.holes.try_reserve(1).is_err() => (),
            None => self.holes.insert(at, start..end),
        }
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        // SAFETY: it was allocated with this layout.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

/// The memory of lists.
static LISTS: Mutex<Chunks> = Mutex::new(Chunks(Vec::new()));

/// The alignment of lists, and of their sizes.
const ALIGNMENT: usize = 64;

/// A list of fixed length in huge pages.
pub(crate) struct HugeVec<T: Pod> {
    start: NonNull<T>,
    len: usize,
    bytes: usize,
}

// SAFETY: it owns its memory, whose elements are plain data.
unsafe impl<T: Pod + Send> Send for HugeVec<T> {}
// SAFETY: as above.
unsafe impl<T: Pod + Sync> Sync for HugeVec<T> {}

impl<T: Pod> HugeVec<T> {
    /// Allocates `len` zeros; `None` if there is no memory for them.
    pub fn zeroed(len: usize) -> Option<Self> {
        const { assert!(align_of::<T>() <= ALIGNMENT) }
        let bytes = len.checked_mul(size_of::<T>())?.checked_next_multiple_of(ALIGNMENT)?;
        if bytes == 0 {
            return Some(HugeVec { start: NonNull::dangling(), len, bytes });
        }
        let block = lock(&LISTS).take(bytes)?;
        // SAFETY: the block has so many bytes.
        unsafe { block.write_bytes(0, bytes) };
        Some(HugeVec { start: block.cast(), len, bytes })
    }
}

impl<T: Pod> Deref for HugeVec<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the block belongs to this list alone, was zeroed, and is aligned: chunks are, and so are all sizes.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T: Pod> DerefMut for HugeVec<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl<T: Pod> Drop for HugeVec<T> {
    fn drop(&mut self) {
        if self.bytes > 0 {
            lock(&LISTS).give_back(self.start.cast(), self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{ALIGNMENT, CHUNK, Chunks, HugeVec};

    /// Blocks of some KiB; the number of a block that is given back.
    #[derive(Clone, Copy, Debug)]
    enum Call {
        Take(usize),
        GiveBack(usize),
    }

    fn calls() -> impl Strategy<Value = Vec<Call>> {
        let sizes = prop_oneof![4 => 1usize..200, 1 => Just(CHUNK >> 12), 1 => 1000usize..20_000];
        prop::collection::vec(
            prop_oneof![3 => sizes.prop_map(Call::Take), 2 => any::<usize>().prop_map(Call::GiveBack)],
            1..80,
        )
    }

    proptest! {
        #[test]
        fn blocks_never_overlap_and_all_memory_comes_back(calls in calls()) {
            let mut chunks = Chunks::default();
            let mut taken: Vec<(usize, usize, std::ptr::NonNull<u8>)> = Vec::new();
            for call in calls {
                match call {
                    Call::Take(size) => {
                        let bytes = size << 12;
                        let block = chunks.take(bytes).expect("there is memory");
                        let start = block.addr().get();
                        prop_assert_eq!(start % 4096, 0);
                        prop_assert!(taken.iter().all(|&(other, length, _)| start + bytes <= other || other + length <= start));
                        prop_assert!(chunks.0.iter().any(|chunk| chunk.place(block).is_some_and(|at| at + bytes <= chunk.layout.size())));
                        taken.push((start, bytes, block));
                    }
                    Call::GiveBack(which) if !taken.is_empty() => {
                        let (_, bytes, block) = taken.swap_remove(which % taken.len());
                        chunks.give_back(block, bytes);
                    }
                    Call::GiveBack(_) => (),
                }
                let free: usize = chunks.0.iter().flat_map(|chunk| &chunk.holes).map(|hole| hole.len()).sum();
                let all: usize = chunks.0.iter().map(|chunk| chunk.layout.size()).sum();
                prop_assert_eq!(all - free, taken.iter().map(|block| block.1).sum::<usize>());
                for chunk in &chunks.0 {
                    prop_assert!(chunk.holes.windows(2).all(|pair| pair[0].end < pair[1].start));
                }
                prop_assert!(chunks.0.iter().filter(|chunk| chunk.is_empty()).count() <= 1);
            }
            for (_, bytes, block) in taken {
                chunks.give_back(block, bytes);
            }
            prop_assert!(chunks.0.is_empty() && chunks.is_empty());
        }
    }

    #[test]
    fn memory_that_does_not_exist_is_not_given() {
        let mut chunks = Chunks::default();
        assert_eq!(chunks.take(0), None);
        assert_eq!(chunks.take(usize::MAX), None);
        assert_eq!(chunks.take(isize::MAX as usize - CHUNK), None);
        assert!(chunks.0.is_empty());
    }

    #[test]
    fn lists_are_zeros_and_their_own() {
        let mut lists: Vec<HugeVec<u32>> = (0..20).map(|len| HugeVec::zeroed(len * 1000).unwrap()).collect();
        for (number, list) in lists.iter_mut().enumerate() {
            assert!(list.iter().all(|&element| element == 0));
            assert!(list.as_ptr().addr().is_multiple_of(ALIGNMENT) || list.is_empty());
            list.fill(number as u32 + 1);
        }
        lists.retain(|list| list.first().is_none_or(|element| element % 2 == 0));
        let again = HugeVec::<u32>::zeroed(3000).unwrap();
        assert!(again.iter().all(|&element| element == 0), "memory that was given back");
        for list in &lists {
            assert!(list.iter().all(|&element| element == list[0]));
        }
        assert!(HugeVec::<u32>::zeroed(usize::MAX / 4).is_none());
        assert!(HugeVec::<u32>::zeroed(usize::MAX).is_none());
    }
}
