//! Which blocks are in use, and by which handle.
//!
//! ```text
//! index   0    1    2    3  |  4    5    6
//!        used free used free|  never handed out
//!             ^ longest free
//! ```
//!
//! Blocks that came back are handed out before those never used, longest free first; a fresh pool therefore hands out
//! 0, 1, 2, ... and touches no memory beyond what it has handed out.
//!
//! Invariants: every block below `blocks.len()` is used, free or retired, and in the free list exactly when it is free;
//! every block above was never handed out. One handle is valid per used block. To hand out and to take back are O(1) per
//! block; memory is taken in `new` alone, so neither can fail for lack of it.

use super::free_list::FreeList;
use super::handle::{BlockHandle, GENERATION_LAST};
use crate::count::count;
use crate::error::{Error, Result};

/// A fixed number of blocks, handed out one by one.
#[derive(Debug)]
pub struct BlockPool {
    capacity: u32,
    /// The blocks handed out at least once.
    blocks: Vec<Block>,
    free: FreeList,
    retired: u32,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    generation: u32,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Used,
    /// Named by the batch that is being given back; only during that call.
    Leaving,
    Free,
    /// Given back for the last time.
    Retired,
}

impl BlockPool {
    /// A pool of `capacity` blocks, all free; 0 is allowed.
    pub fn new(capacity: u32) -> Result<Self> {
        let capacity = count("capacity", capacity.into())?;
        let mut blocks = Vec::new();
        blocks
            .try_reserve_exact(capacity as usize)
            .map_err(|_| Error::OutOfMemory { count: capacity.into(), what: "blocks" })?;
        Ok(BlockPool { capacity, blocks, free: FreeList::new(capacity)?, retired: 0 })
    }

    /// Hands out a block.
    pub fn allocate(&mut self) -> Result<BlockHandle> {
        self.try_allocate().ok_or_else(|| self.out_of_blocks(1u32))
    }

    /// Hands out a block, if one is free.
    pub fn try_allocate(&mut self) -> Option<BlockHandle> {
        if let Some(index) = self.free.pop_front() {
            let block = &mut self.blocks[index as usize];
            block.generation += 1;
            block.state = State::Used;
            return Some(BlockHandle::new(index, block.generation));
        }
        let index = self.handed_out();
        (index < self.capacity).then(|| {
            self.blocks.push(Block { generation: 0, state: State::Used });
            BlockHandle::new(index, 0)
        })
    }

    /// Hands out `n` blocks, or none.
    pub fn allocate_many(&mut self, n: u32) -> Result<Vec<BlockHandle>> {
        let mut handles = Vec::new();
        self.allocate_into(&mut handles, n)?;
        Ok(handles)
    }

    /// Adds `n` blocks to a list, or none.
    pub(super) fn allocate_into(&mut self, handles: &mut Vec<BlockHandle>, n: u32) -> Result<()> {
        if n > self.free_count() {
            return Err(self.out_of_blocks(n));
        }
        handles
            .try_reserve(n as usize)
            .map_err(|_| Error::OutOfMemory { count: handles.len() as u64 + u64::from(n), what: "blocks" })?;
        handles.extend((0..n).map(|_| self.try_allocate().expect("as many blocks as are counted free")));
        Ok(())
    }

    /// The indices of the blocks that would be handed out next, in that order; changes nothing.
    pub fn upcoming(&self) -> impl Iterator<Item = u32> {
        self.free.iter().chain(self.handed_out()..self.capacity)
    }

    /// Takes a block back.
    pub fn free(&mut self, handle: BlockHandle) -> Result<()> {
        self.free_many(&[handle])
    }

    /// Takes blocks back, or none of them: a batch with a handle that cannot be used, or with one handle twice, is
    /// refused whole.
    pub fn free_many(&mut self, handles: &[BlockHandle]) -> Result<()> {
        for (place, &handle) in handles.iter().enumerate() {
            match self.check(handle) {
                Ok(index) => self.blocks[index as usize].state = State::Leaving,
                Err(refusal) => {
                    for named in &handles[..place] {
                        self.blocks[named.index() as usize].state = State::Used;
                    }
                    return Err(refusal);
                }
            }
        }
        for handle in handles {
            self.take_back(handle.index());
        }
        Ok(())
    }

    fn take_back(&mut self, index: u32) {
        let block = &mut self.blocks[index as usize];
        if block.generation == GENERATION_LAST {
            block.state = State::Retired;
            self.retired += 1;
        } else {
            block.state = State::Free;
            self.free.push_back(index);
        }
    }

    /// The index of a block in use; any other handle is refused.
    pub fn check(&self, handle: BlockHandle) -> Result<u32> {
        let refuse = |reason| Err(Error::InvalidBlock { block: handle.raw(), reason });
        let Some(block) = self.blocks.get(handle.index() as usize) else {
            return refuse("not a block of this pool");
        };
        match block.state {
            _ if handle.generation() > block.generation => refuse("not a block of this pool"),
            _ if handle.generation() < block.generation => refuse("its generation is over"),
            State::Used => Ok(handle.index()),
            State::Leaving => refuse("twice in one batch"),
            State::Free | State::Retired => refuse("already free"),
        }
    }

    /// Blocks that it was made with: their indices are below this.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Blocks that can be handed out.
    #[must_use]
    pub fn free_count(&self) -> u32 {
        self.capacity - self.handed_out() + self.free.len()
    }

    /// Blocks in use or free; retired ones no longer count.
    #[must_use]
    pub fn total_count(&self) -> u32 {
        self.capacity - self.retired
    }

    /// The share of blocks in use, 0 to 1; 0 for a pool without blocks.
    #[must_use]
    pub fn utilization(&self) -> f64 {
        match self.total_count() {
            0 => 0.0,
            total => f64::from(total - self.free_count()) / f64::from(total),
        }
    }

    /// Says what is wrong with the bookkeeping, if anything is: every block is in exactly one set, and the counts add
    /// up. O(blocks ever handed out).
    pub fn check_invariants(&self) -> Result<(), String> {
        self.free.check()?;
        if let Some(index) = self.free.iter().find(|&index| self.blocks[index as usize].state != State::Free) {
            return Err(format!("block {index} is in the free list and {:?}", self.blocks[index as usize].state));
        }
        let number_of = |state| self.blocks.iter().filter(|block| block.state == state).count();
        let [used, leaving, free, retired] =
            [State::Used, State::Leaving, State::Free, State::Retired].map(|state| number_of(state) as u32);
        if leaving != 0 {
            return Err(format!("{leaving} blocks were left half given back"));
        }
        if free != self.free.len() {
            return Err(format!("{free} blocks are free, the free list has {}", self.free.len()));
        }
        if retired != self.retired {
            return Err(format!("{retired} blocks are retired, {} are counted", self.retired));
        }
        if self.handed_out() > self.capacity || used + self.free_count() != self.total_count() {
            let (free, total) = (self.free_count(), self.total_count());
            return Err(format!("{used} used and {free} free blocks are not {total} in total"));
        }
        Ok(())
    }

    fn handed_out(&self) -> u32 {
        self.blocks.len() as u32
    }

    pub(super) fn out_of_blocks(&self, needed: impl Into<u64>) -> Error {
        Error::OutOfBlocks { needed: needed.into(), free: self.free_count().into() }
    }
}
