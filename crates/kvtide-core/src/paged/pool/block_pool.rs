//! A pool of blocks with handles: the blocks in use, and their reference counts.
//!
//! ```text
//! index        0     1     2     3  |  4    5    6
//! generation   0     2     0     5  |  never handed out
//! count        1     -     3     1  |
//! ```
//!
//! A handle names one life of a block, from the call that hands it out until its reference count is zero. Freed blocks
//! are handed out before those never used, longest free first. So a new pool hands out 0, 1, 2, ... and uses no memory
//! for blocks that it has not handed out.
//!
//! A block has 2^21 lives, so that no handle is used twice; then it is *retired*. A pool of n blocks is good for n ×
//! 2,097,152 allocations: with 30 blocks, for a week at 100 allocations per second. [`BlockPool::retired_count`]
//! returns the number of retired blocks. A new pool starts over and hands out the same handles again, so handles of the
//! old pool must not be used with it.
//!
//! Handing out, retaining and freeing are O(1) per block, the first amortised with its memory. 20 bytes per block.

use std::collections::HashMap;
use std::fmt;

use super::blocks::Blocks;
use super::order::BlockState;
use crate::count::{count, count_positive};
use crate::error::{Error, Result, reserve};
use crate::paged::per_block::PerBlock;

/// The last generation of a block; then the block is retired.
const GENERATION_LAST: u32 = (1 << 21) - 1;

/// One block of a pool, from the moment it is handed out until it is freed: its index in the low 32 bits, its
/// generation above them, together below 2^53. Any number can be made into a handle; the pool checks if it is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockHandle(u64);

impl BlockHandle {
    /// The handle with this number.
    #[must_use]
    pub fn from_raw(raw: u64) -> Self {
        BlockHandle(raw)
    }

    fn new(index: u32, generation: u32) -> Self {
        BlockHandle(u64::from(index) | u64::from(generation) << 32)
    }

    /// The handle as one number: index + generation × 2^32.
    #[must_use]
    pub fn raw(self) -> u64 {
        self.0
    }

    /// The place of the block in its pool, and in the slab.
    #[must_use]
    pub fn index(self) -> u32 {
        self.0 as u32
    }

    /// Number of times that the block had been freed when it was handed out.
    #[must_use]
    pub fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

impl fmt::Display for BlockHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A fixed number of blocks, handed out one by one.
#[derive(Debug)]
pub struct BlockPool {
    blocks: Blocks,
    /// Number of earlier lives of each block; of a free block, including the last one.
    generations: PerBlock<u32>,
    watermark: u32,
}

impl BlockPool {
    /// Returns a pool of `capacity` blocks, all free; 0 is allowed.
    pub fn new(capacity: u32) -> Result<Self> {
        let blocks = Blocks::new(capacity)?;
        Ok(BlockPool { blocks, generations: PerBlock::new(capacity, 1, 0), watermark: 0 })
    }

    /// Makes [`BlockPool::can_allocate`] keep this many blocks back, as room for present sequences to grow. It is
    /// advice for the admission of new sequences, and does not restrict allocations.
    pub fn set_watermark(&mut self, blocks: u32) -> Result<()> {
        self.watermark = count("watermark", blocks.into())?;
        Ok(())
    }

    /// Number of blocks kept back.
    #[must_use]
    pub fn watermark(&self) -> u32 {
        self.watermark
    }

    /// True if this many blocks could be handed out and the watermark be left.
    #[must_use]
    pub fn can_allocate(&self, n: u32) -> bool {
        u64::from(n) + u64::from(self.watermark) <= self.free_count().into()
    }

    /// Hands out a block. Once all blocks are retired, this always returns an error.
    pub fn allocate(&mut self) -> Result<BlockHandle> {
        self.reserve(1)?;
        self.try_allocate().ok_or_else(|| self.out_of_blocks(1))
    }

    /// Hands out a block, if one is free and there is memory for its bookkeeping.
    pub fn try_allocate(&mut self) -> Option<BlockHandle> {
        self.reserve(1).ok()?;
        let taken = self.blocks.take()?;
        Some(BlockHandle::new(taken.block, self.generations[taken.block]))
    }

    /// Hands out `n` blocks, or none.
    pub fn allocate_many(&mut self, n: u32) -> Result<Vec<BlockHandle>> {
        if n > self.free_count() {
            return Err(self.out_of_blocks(n));
        }
        self.reserve(n)?;
        let mut handles = Vec::new();
        reserve(&mut handles, n as usize, "blocks")?;
        handles.extend((0..n).map(|_| self.try_allocate().expect("as many blocks as are counted free")));
        Ok(handles)
    }

    /// The indices of the blocks that would be handed out next, in that order. Changes nothing.
    pub fn upcoming(&self) -> impl Iterator<Item = u32> {
        self.blocks.upcoming().map(|taken| taken.block)
    }

    /// Increments a block's reference count. The block is free once it was freed as many times as it is held.
    pub fn retain(&mut self, handle: BlockHandle) -> Result<()> {
        let index = self.check(handle)?;
        if self.blocks.count(index) == u32::MAX {
            return Err(Error::InvalidBlock {
                block: handle.raw() as i64,
                reason: "its reference count is at its maximum",
            });
        }
        self.blocks.retain(index);
        Ok(())
    }

    /// The reference count of a block.
    pub fn count(&self, handle: BlockHandle) -> Result<u32> {
        Ok(self.blocks.count(self.check(handle)?))
    }

    /// Decrements a block's reference count.
    pub fn free(&mut self, handle: BlockHandle) -> Result<()> {
        self.free_many(&[handle])
    }

    /// Decrements the reference counts of blocks, all or none: if a handle is invalid, or names a block more often than
    /// it is held, the whole batch is refused.
    pub fn free_many(&mut self, handles: &[BlockHandle]) -> Result<()> {
        for (place, &handle) in handles.iter().enumerate() {
            if let Err(refusal) = self.check(handle).map(|index| self.blocks.drop_count(index)) {
                handles[..place].iter().for_each(|named| self.blocks.undo_drop(named.index()));
                return Err(refusal);
            }
        }
        for handle in handles {
            let index = handle.index();
            // A block named more than once is freed the first time it is met here.
            if self.blocks.set(index) == BlockState::Active && self.blocks.count(index) == 0 {
                self.put_back(handle);
            }
        }
        Ok(())
    }

    fn put_back(&mut self, handle: &BlockHandle) {
        if handle.generation() == GENERATION_LAST {
            self.blocks.retire(handle.index());
        } else {
            self.blocks.put_back(handle.index());
            self.generations[handle.index()] += 1;
        }
    }

    /// The index of a block in use. Returns an error for any other handle.
    pub fn check(&self, handle: BlockHandle) -> Result<u32> {
        let refuse = |reason| Err(Error::InvalidBlock { block: handle.raw() as i64, reason });
        let index = handle.index();
        if index >= self.blocks.touched() {
            return refuse("not a block of this pool");
        }
        let in_use = self.blocks.set(index) == BlockState::Active;
        let free = self.blocks.set(index) == BlockState::Free;
        let latest = self.generations[index] - u32::from(free);
        match handle.generation() {
            generation if generation > latest => refuse("not a block of this pool"),
            generation if generation < latest => refuse("it was freed, and this handle is of an older generation"),
            _ if !in_use => refuse("it is already free"),
            _ if self.blocks.count(index) == 0 => refuse("it is in the batch more often than it is held"),
            _ => Ok(index),
        }
    }

    /// Number of blocks that the pool was made with; their indices are below this number.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.blocks.capacity()
    }

    /// Number of blocks that can be handed out.
    #[must_use]
    pub fn free_count(&self) -> u32 {
        self.blocks.available()
    }

    /// Number of blocks whose lives are used up; they are never handed out again.
    #[must_use]
    pub fn retired_count(&self) -> u32 {
        self.blocks.retired_count()
    }

    /// Number of blocks in use or free. It falls as blocks retire, each after its 2,097,152nd life, in the end to 0.
    #[must_use]
    pub fn total_count(&self) -> u32 {
        self.capacity() - self.blocks.retired_count()
    }

    /// The share of blocks in use, 0 to 1; 0 for a pool without blocks.
    #[must_use]
    pub fn utilization(&self) -> f64 {
        match self.total_count() {
            0 => 0.0,
            total => f64::from(total - self.free_count()) / f64::from(total),
        }
    }

    /// Returns an error of the bookkeeping, if any: every block must be in exactly one set, and the counts must add up.
    /// O(blocks ever handed out).
    pub fn check_invariants(&self) -> Result<(), String> {
        self.blocks.check_invariants()?;
        if self.blocks.cached_count() != 0 {
            return Err(format!("{} blocks are cached in a pool without an index", self.blocks.cached_count()));
        }
        let over = |&index: &u32| self.generations[index] > GENERATION_LAST;
        match (0..self.blocks.touched()).find(over) {
            Some(index) => Err(format!("block {index} is in generation {}", self.generations[index])),
            None => Ok(()),
        }
    }

    /// Reserves the memory for handing out this many blocks.
    fn reserve(&mut self, n: u32) -> Result<()> {
        self.blocks.reserve(n)?;
        let highest = u64::from(self.blocks.touched()) + u64::from(n);
        match highest.min(self.capacity().into()).checked_sub(1) {
            Some(last) if n > 0 => self.generations.reserve(last as u32),
            _ => Ok(()),
        }
    }

    fn out_of_blocks(&self, needed: u32) -> Error {
        Error::OutOfBlocks { needed: needed.into(), free: self.free_count().into(), holders: None }
    }
}

/// The block table of one sequence, for each layer: logical block i holds the tokens from `i * block_size` on. A table
/// does not know the pool of its handles; the caller does. A layer without blocks costs nothing. Every call is O(1),
/// `append_block` amortised.
#[derive(Clone, Debug)]
pub struct BlockTable {
    num_layers: u32,
    block_size: u32,
    layers: HashMap<u32, Vec<BlockHandle>>,
}

impl BlockTable {
    /// An empty table.
    pub fn new(num_layers: u32, block_size: u32) -> Result<Self> {
        let num_layers = count_positive("numLayers", num_layers.into())?;
        let block_size = count_positive("blockSize", block_size.into())?;
        Ok(BlockTable { num_layers, block_size, layers: HashMap::new() })
    }

    /// Appends a block to those of the layer.
    pub fn append_block(&mut self, layer: u32, block: BlockHandle) -> Result<()> {
        let count = u64::from(self.num_blocks(layer)?) + 1;
        let out_of_memory = |_| Error::OutOfMemory { count, what: "blocks" };
        self.layers.try_reserve(1).map_err(out_of_memory)?;
        let blocks = self.layers.entry(layer).or_default();
        blocks.try_reserve(1).map_err(out_of_memory)?;
        blocks.push(block);
        Ok(())
    }

    /// The block at a place; [`None`] behind the last block.
    pub fn get_block(&self, layer: u32, logical: u32) -> Result<Option<BlockHandle>> {
        Ok(self.blocks(layer)?.get(logical as usize).copied())
    }

    /// Number of blocks of a layer.
    pub fn num_blocks(&self, layer: u32) -> Result<u32> {
        Ok(self.blocks(layer)?.len() as u32)
    }

    /// Number of tokens that a layer's blocks can hold.
    pub fn token_capacity(&self, layer: u32) -> Result<u64> {
        Ok(u64::from(self.num_blocks(layer)?) * u64::from(self.block_size))
    }

    fn blocks(&self, layer: u32) -> Result<&[BlockHandle]> {
        if layer >= self.num_layers {
            return Err(Error::argument("layer", layer, format!("below {}", self.num_layers)));
        }
        Ok(self.layers.get(&layer).map_or(&[], Vec::as_slice))
    }
}
