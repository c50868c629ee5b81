//! The sequences of a paged cache: which block and slot each token lies in.
//!
//! ```text
//! sequence 7   [ block 2 ][ block 0 ][ block 5 ]     tokens 0..16, 16..32, 32..48 of every layer
//! marks                     which slots of which layers were written
//! ```
//!
//! A block holds the same tokens of every layer, so a sequence has one list of blocks for all of them. Writes are in
//! `writing.rs`, reads in `reading.rs`; what a sequence reads it has written itself, since marks go with the block.
//!
//! Invariants: a used block of the pool belongs to exactly one sequence; a block of no sequence has no mark; the length
//! is the highest marked position + 1, over all layers; where pages are staged, exactly those are whose slots are marked in
//! part. Dropping a sequence is O(its blocks * layers * block_size / 64).

use std::collections::{HashMap, HashSet};

use super::handle::BlockHandle;
use super::page_set::PageSet;
use super::pool::BlockPool;
use super::staging::{Page, Staging};
use super::written::WrittenMarks;
use crate::count::{count, count_positive};
use crate::error::{Error, Result};

/// Decides where a paged cache keeps the tokens of its sequences.
#[derive(Debug)]
pub struct PagedPlanner {
    pub(super) num_layers: u32,
    pub(super) block_size: u32,
    pub(super) pool: BlockPool,
    pub(super) marks: WrittenMarks,
    /// Pages whose unmarked slots may hold what another sequence wrote.
    pub(super) dirty: PageSet,
    pub(super) sequences: HashMap<u64, Sequence>,
    pub(super) staging: Staging,
    /// Whether pages are staged until they are full.
    low_bit: bool,
    next_id: u64,
    /// Counts changes, so that a plan is known to be up to date.
    pub(super) revision: u64,
}

#[derive(Debug, Default)]
pub(super) struct Sequence {
    pub blocks: Vec<BlockHandle>,
    /// Highest written position + 1, over all layers.
    pub length: u32,
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
            dirty: PageSet::new(capacity, num_layers)?,
            sequences: HashMap::new(),
            staging: Staging::default(),
            low_bit: false,
            next_id: 0,
            revision: 0,
        })
    }

    /// The same, its pages staged until they are full.
    #[must_use]
    pub fn staging_pages(mut self) -> Self {
        self.low_bit = true;
        self
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
            self.dirty.insert_block(block.index());
            self.staging.give_back_block(block.index(), self.num_layers);
        }
        self.pool.free_many(&dropped.blocks).expect("a sequence's blocks are in use");
        self.changed();
        Ok(())
    }

    /// Gives the sequence blocks for `tokens` tokens in total; takes all that are missing, or none.
    pub fn ensure_capacity(&mut self, sequence: u64, tokens: u32) -> Result<()> {
        let blocks = count("tokens", tokens.into())?.div_ceil(self.block_size);
        let held = self.sequences.get_mut(&sequence).ok_or(Error::SequenceNotFound { sequence })?;
        let missing = blocks.saturating_sub(held.blocks.len() as u32);
        self.pool.allocate_into(&mut held.blocks, missing)?;
        self.changed();
        Ok(())
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

    /// Pages that are staged.
    #[must_use]
    pub fn staged_count(&self) -> u32 {
        self.staging.len()
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
        self.check_staging(&owned)?;
        match (0..self.marks.blocks()).find(|block| !owned.contains(block) && !self.marks.is_clear(*block)) {
            Some(block) => Err(format!("block {block} of no sequence is marked as written")),
            None => Ok(()),
        }
    }

    /// Exactly the pages that are written in part are staged.
    fn check_staging(&self, owned: &HashSet<u32>) -> Result<(), String> {
        self.staging.check_invariants()?;
        let slots = 0..self.block_size;
        for (&block, layer) in owned.iter().flat_map(|block| (0..self.num_layers).map(move |layer| (block, layer))) {
            let [any, all] =
                [WrittenMarks::has_any, WrittenMarks::has_all].map(|has| has(&self.marks, block, layer, slots.clone()));
            let staged = self.staging.get(Page { block, layer }).is_some();
            if staged != (self.low_bit && any && !all) {
                return Err(format!(
                    "layer {layer} of block {block} is written in part: {}, staged: {staged}",
                    any && !all
                ));
            }
        }
        match self.staging.pages().find(|page| !owned.contains(&page.block)) {
            Some(page) => Err(format!("layer {} of block {} of no sequence is staged", page.layer, page.block)),
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

    pub(super) fn sequence(&self, sequence: u64) -> Result<&Sequence> {
        self.sequences.get(&sequence).ok_or(Error::SequenceNotFound { sequence })
    }

    pub(super) fn is_staged(&self) -> bool {
        self.low_bit
    }

    /// Notes a change after which a plan from before would come out otherwise.
    pub(super) fn changed(&mut self) {
        self.revision += 1;
    }

    pub(super) fn check_layer(&self, layer: u32) -> Result<()> {
        if layer < self.num_layers {
            return Ok(());
        }
        Err(Error::argument("layer", layer, format!("below {}", self.num_layers)))
    }
}
