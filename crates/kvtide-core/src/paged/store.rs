//! What becomes of a block: handed out, written, shared, found again, evicted.
//!
//! ```text
//! blocks    who holds it, and when it goes            index     what tokens it holds, and by which key it is found
//! marks     which of its slots were written           staging   which of its low-bit pages lie in floats
//! dirty     which of its pages may show old bytes
//! ```
//!
//! Invariants: a block that nobody holds is cached when the index leads to it, else free; a free block has no mark, no key and
//! no staged page, and its pages are dirty. Every call is O(1), but for those that name a run of slots.

use super::blocks::{Blocks, Chain, Release, Set};
use super::chunks::Counts;
use super::page_set::PageSet;
use super::prefix::PrefixIndex;
use super::slot::Slot;
use super::staging::{Page, Staging};
use super::written::WrittenMarks;
use crate::error::Result;

/// All blocks of one group of layers.
#[derive(Debug)]
pub(super) struct Store {
    pub blocks: Blocks,
    pub index: PrefixIndex,
    pub marks: WrittenMarks,
    /// Pages whose unmarked slots may hold what was written before.
    pub dirty: PageSet,
    pub staging: Staging,
    pub num_layers: u32,
    pub block_size: u32,
    /// What is carried along while the blocks of one sequence are released.
    chain: Chain,
}

impl Store {
    pub fn new(blocks: Blocks, num_layers: u32, block_size: u32) -> Result<Self> {
        let capacity = blocks.capacity();
        Ok(Store {
            blocks,
            index: PrefixIndex::new(capacity, block_size)?,
            marks: WrittenMarks::new(capacity, num_layers, block_size)?,
            dirty: PageSet::new(capacity, num_layers)?,
            staging: Staging::default(),
            num_layers,
            block_size,
            chain: Chain::default(),
        })
    }

    /// Bytes taken for blocks, without tokens and staged pages.
    pub fn bytes(&self) -> usize {
        self.blocks.bytes() + self.index.bytes() + self.marks.bytes() + self.dirty.bytes()
    }

    /// Makes room for the next `blocks` blocks, and for changes of the marks of so many.
    pub fn reserve(&mut self, blocks: usize, changes: usize) -> Result<()> {
        self.blocks.reserve(blocks as u32)?;
        let highest = self.blocks.upcoming().take(blocks).map(|next| next.block).max();
        if let Some(block) = highest {
            self.dirty.reserve(block)?;
            self.index.reserve(block)?;
        }
        self.marks.reserve(highest.unwrap_or(0), changes)
    }

    /// Hands out a block that is known to be there.
    pub fn take(&mut self) -> u32 {
        let taken = self.blocks.take().expect("a block that was counted available");
        if taken.evicted {
            self.index.evict(taken.block);
            self.empty(taken.block);
        }
        taken.block
    }

    /// Starts to release the blocks of one chain, tail first.
    pub fn chain(&mut self) -> &mut Self {
        self.chain = Chain::default();
        self
    }

    /// Whether all slots of a block are written and none of its pages lies in floats.
    pub fn is_settled(&self, block: u32) -> bool {
        self.marks.is_whole(block)
            && (self.staging.is_empty()
                || (0..self.num_layers).all(|layer| self.staging.get(Page { block, layer }).is_none()))
    }

    /// Forgets what the slots of a block from `slot` on hold, in all layers; room for the change is reserved.
    pub fn forget_slots(&mut self, block: u32, slot: u32) {
        self.unmark(block, slot);
        for layer in 0..self.num_layers {
            if !self.marks.has_any(block, layer, 0..slot) {
                self.staging.give_back(Page { block, layer });
            }
        }
    }

    /// The same, its staged pages left where they are.
    pub fn unmark(&mut self, block: u32, slot: u32) {
        if self.marks.has_any_layer(block, slot..self.block_size) {
            for layer in 0..self.num_layers {
                self.marks.unset(block, layer, slot..self.block_size);
            }
            self.dirty.insert_block(block);
        }
    }

    /// Copies the id of one token.
    pub fn copy_token(&mut self, source: Slot, target: Slot) {
        let token = self.index.tokens(source.block)[source.slot as usize];
        self.index.set_tokens(target.block, target.slot, &[token]);
    }

    /// A block that nobody holds is free then.
    pub fn drop_content(&mut self, block: u32) {
        self.blocks.forget(block);
        self.index.remove(block);
        self.empty(block);
    }

    /// Forgets what a block held; its memory still holds it.
    fn empty(&mut self, block: u32) {
        self.marks.clear_block(block);
        self.dirty.insert_block(block);
        self.staging.give_back_block(block, self.num_layers);
    }
}

impl Counts for Store {
    fn retain(&mut self, block: u32) {
        self.blocks.retain(block);
    }

    fn release(&mut self, block: u32, place: u32) {
        let how = Release { cached: self.index.is_indexed(block), depth: place };
        self.blocks.release(block, how, &mut self.chain);
        if self.blocks.set(block) == Set::Free {
            self.index.remove(block);
            self.empty(block);
        }
    }

    fn hands_on(&self) -> bool {
        self.blocks.hands_on(&self.chain)
    }

    fn hand_on(&mut self, block: u32) {
        self.blocks.hand_on(block, &self.chain);
    }
}
