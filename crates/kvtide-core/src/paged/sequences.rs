//! The sequences of a paged cache: which block and slot each token lies in.
//!
//! ```text
//! plan = planner.plan_write(sequence, layer, position)?     refused: nothing has changed
//! executor moves the bytes to plan.slot                     failed: nothing has changed
//! planner.commit_write(&plan)?                              blocks taken, slot marked, length moved on
//! ```
//!
//! A block holds the same tokens of every layer, so a sequence has one list of blocks for all of them. Reads are by
//! [`PagedPlanner::locate`], and only of slots that the sequence itself has written: marks go with the block.
//!
//! Invariants: a used block of the pool belongs to exactly one sequence; a block of no sequence has no mark; the length
//! is the highest marked position + 1, over all layers. A write or a read is O(1), a write that skips over blocks
//! O(blocks taken); dropping a sequence is O(its blocks * layers * block_size / 64).

use std::collections::{HashMap, HashSet};

use super::handle::BlockHandle;
use super::pool::BlockPool;
use super::slot::{Slot, SlotPlan};
use super::written::WrittenMarks;
use crate::count::{COUNT_MAX, count, count_positive};
use crate::error::{Error, Result};

/// Decides where a paged cache keeps the tokens of its sequences.
#[derive(Debug)]
pub struct PagedPlanner {
    num_layers: u32,
    block_size: u32,
    pool: BlockPool,
    marks: WrittenMarks,
    sequences: HashMap<u64, Sequence>,
    next_id: u64,
}

#[derive(Debug, Default)]
struct Sequence {
    blocks: Vec<BlockHandle>,
    /// Highest written position + 1, over all layers.
    length: u32,
}

impl PagedPlanner {
    /// A cache of `capacity` blocks, each of `block_size` tokens of all layers.
    pub fn new(capacity: u32, block_size: u32, num_layers: u32) -> Result<Self> {
        let block_size = count_positive("blockSize", block_size.into())?;
        let num_layers = count_positive("numLayers", num_layers.into())?;
        Ok(PagedPlanner {
            num_layers,
            block_size,
            pool: BlockPool::new(capacity)?,
            marks: WrittenMarks::new(capacity, num_layers, block_size)?,
            sequences: HashMap::new(),
            next_id: 0,
        })
    }

    /// A new, empty sequence. Ids count up from 0 and are never used again.
    pub fn create_sequence(&mut self) -> Result<u64> {
        let count = self.sequences.len() as u64 + 1;
        self.sequences.try_reserve(1).map_err(|_| Error::OutOfMemory { count, what: "sequences" })?;
        let id = self.next_id;
        self.sequences.insert(id, Sequence::default());
        self.next_id += 1;
        Ok(id)
    }

    /// Ends a sequence and gives all its blocks back.
    pub fn drop_sequence(&mut self, sequence: u64) -> Result<()> {
        let dropped = self.sequences.remove(&sequence).ok_or(Error::SequenceNotFound { sequence })?;
        for block in &dropped.blocks {
            self.marks.clear_block(block.index());
        }
        self.pool.free_many(&dropped.blocks).expect("a sequence's blocks are in use");
        Ok(())
    }

    /// Gives the sequence blocks for `tokens` tokens in total; takes all that are missing, or none.
    pub fn ensure_capacity(&mut self, sequence: u64, tokens: u32) -> Result<()> {
        let blocks = count("tokens", tokens.into())?.div_ceil(self.block_size);
        let held = self.sequences.get_mut(&sequence).ok_or(Error::SequenceNotFound { sequence })?;
        let missing = blocks.saturating_sub(held.blocks.len() as u32);
        self.pool.allocate_into(&mut held.blocks, missing)
    }

    /// Where a token of a layer would be written, and what that takes; changes nothing. A slot may be written again.
    pub fn plan_write(&self, sequence: u64, layer: u32, position: u32) -> Result<SlotPlan> {
        self.check_layer(layer)?;
        if position >= COUNT_MAX {
            return Err(Error::argument("pos", position, format!("below {COUNT_MAX}")));
        }
        let held = self.sequence(sequence)?;
        let (logical, slot) = (position / self.block_size, position % self.block_size);
        let (block, new_blocks) = match held.blocks.get(logical as usize) {
            Some(handle) => (handle.index(), 0),
            None => {
                let missing = logical + 1 - held.blocks.len() as u32;
                (self.pool.peek(missing - 1).ok_or_else(|| self.pool.out_of_blocks(missing))?, missing)
            }
        };
        Ok(SlotPlan { sequence, layer, position, new_blocks, slot: Slot { block, slot } })
    }

    /// Carries out a plan in the bookkeeping: all of it, or nothing. A plan that would no longer come out the same,
    /// because the cache has changed since, is refused.
    pub fn commit_write(&mut self, plan: &SlotPlan) -> Result<()> {
        let SlotPlan { sequence, layer, position, new_blocks, slot: Slot { block, slot } } = *plan;
        if self.plan_write(sequence, layer, position)? != *plan {
            return Err(Error::argument("plan", format!("for block {block}"), "a plan made after the last change"));
        }
        self.marks.reserve(block)?;
        let held = self.sequences.get_mut(&sequence).ok_or(Error::SequenceNotFound { sequence })?;
        self.pool.allocate_into(&mut held.blocks, new_blocks)?;
        let taken = held.blocks[(position / self.block_size) as usize].index();
        assert_eq!(taken, block, "the pool hands out what it has announced");
        held.length = held.length.max(position + 1);
        self.marks.set(block, layer, slot);
        Ok(())
    }

    /// Where a written token of a layer lies.
    pub fn locate(&self, sequence: u64, layer: u32, position: u32) -> Result<Slot> {
        self.check_layer(layer)?;
        let held = self.sequence(sequence)?;
        let slot = position % self.block_size;
        let block = held.blocks.get((position / self.block_size) as usize).map(|handle| handle.index());
        block.filter(|&block| self.marks.get(block, layer, slot)).map(|block| Slot { block, slot }).ok_or_else(|| {
            Error::PositionOutOfRange { sequence, layer, position: position.into(), length: held.length.into() }
        })
    }

    /// Highest written position + 1, over all layers; 0 for an unknown sequence.
    #[must_use]
    pub fn sequence_length(&self, sequence: u64) -> u32 {
        self.sequences.get(&sequence).map_or(0, |held| held.length)
    }

    /// Slots of a sequence's blocks; 0 for an unknown sequence.
    #[must_use]
    pub fn sequence_capacity(&self, sequence: u64) -> u64 {
        let blocks = self.sequences.get(&sequence).map_or(0, |held| held.blocks.len());
        blocks as u64 * u64::from(self.block_size)
    }

    /// Sequences that are not dropped.
    #[must_use]
    pub fn num_sequences(&self) -> usize {
        self.sequences.len()
    }

    /// Their ids, ascending. O(n log n).
    #[must_use]
    pub fn sequence_ids(&self) -> Vec<u64> {
        let mut ids: Vec<u64> = self.sequences.keys().copied().collect();
        ids.sort_unstable();
        ids
    }

    /// Tokens of a block.
    #[must_use]
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// Layers of a block.
    #[must_use]
    pub fn num_layers(&self) -> u32 {
        self.num_layers
    }

    /// Blocks that can be taken.
    #[must_use]
    pub fn free_count(&self) -> u32 {
        self.pool.free_count()
    }

    /// Blocks in use or free.
    #[must_use]
    pub fn total_count(&self) -> u32 {
        self.pool.total_count()
    }

    /// The share of blocks in use, 0 to 1.
    #[must_use]
    pub fn pool_utilization(&self) -> f64 {
        self.pool.utilization()
    }

    /// Says what is wrong with the bookkeeping, if anything is. O(slots).
    pub fn check_invariants(&self) -> Result<(), String> {
        self.pool.check_invariants()?;
        let mut owned = HashSet::new();
        for (id, held) in &self.sequences {
            for &handle in &held.blocks {
                let index = self.pool.check(handle).map_err(|refusal| format!("sequence {id}: {refusal}"))?;
                if !owned.insert(index) {
                    return Err(format!("block {index} of sequence {id} is held twice"));
                }
            }
            let length = self.marked_length(held);
            if length != held.length {
                return Err(format!("sequence {id} has length {}, its marks say {length}", held.length));
            }
        }
        let used = self.total_count() - self.free_count();
        if owned.len() != used as usize {
            return Err(format!("{used} blocks are used, the sequences hold {}", owned.len()));
        }
        match (0..self.marks.blocks()).find(|block| !owned.contains(block) && !self.marks.is_clear(*block)) {
            Some(block) => Err(format!("block {block} of no sequence is marked as written")),
            None => Ok(()),
        }
    }

    fn marked_length(&self, held: &Sequence) -> u32 {
        let written = |&position: &u32| {
            let block = held.blocks[(position / self.block_size) as usize].index();
            (0..self.num_layers).any(|layer| self.marks.get(block, layer, position % self.block_size))
        };
        (0..held.blocks.len() as u32 * self.block_size).rev().find(written).map_or(0, |position| position + 1)
    }

    fn sequence(&self, sequence: u64) -> Result<&Sequence> {
        self.sequences.get(&sequence).ok_or(Error::SequenceNotFound { sequence })
    }

    fn check_layer(&self, layer: u32) -> Result<()> {
        if layer < self.num_layers {
            return Ok(());
        }
        Err(Error::argument("layer", layer, format!("below {}", self.num_layers)))
    }
}
