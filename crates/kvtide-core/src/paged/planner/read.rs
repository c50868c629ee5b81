//! Reads: the pages in which a sequence's tokens lie, and which of their slots were never written.
//!
//! A page is *dirty* while unmarked slots of it may hold what another sequence wrote. It is zeroed only before a bulk read: a page that
//! is written as a whole never is. A page costs O(block_size / 64).

use std::ops::Range;

use super::paged_planner::PagedPlanner;
use super::step_tables::NO_BLOCK;
use crate::error::{Error, Result, reserve};
use crate::paged::pages::{Page, PageRead, Slot};
use crate::paged::sequence::Sequence;
use crate::tree::Tree;

impl PagedPlanner {
    /// Where a written token of a layer lies.
    pub fn locate(&self, sequence: u64, layer: u32, position: u32) -> Result<Slot> {
        self.check_layer(layer)?;
        let of = self.sequences.find(sequence)?;
        let slot = position % self.block_size();
        let block = self.tables.get(of.table(), position / self.block_size());
        let written = |block: &u32| position < of.end() && self.tables.pool().marks().get(*block, layer, slot);
        block.filter(written).map(|block| Slot { block, index: slot }).ok_or_else(|| {
            let length = of.length().into();
            Error::PositionOutOfRange { sequence, layer, position: position.into(), length }
        })
    }

    /// The staging page of a page, if it has one.
    #[must_use]
    pub fn staged(&self, block: u32, layer: u32) -> Option<u32> {
        self.tables.pool().staging().get(Page { block, layer })
    }

    /// The pages that are staged, in no order.
    pub fn staged_pages(&self) -> impl Iterator<Item = Page> {
        self.tables.pool().staging().pages()
    }

    /// The pages of a layer that hold a sequence's tokens, in order, with those of an open step.
    pub fn pages(&self, sequence: u64, layer: u32) -> Result<impl Iterator<Item = PageRead>> {
        self.check_layer(layer)?;
        let of = self.sequences.find(sequence)?;
        let held = self.tables.iter(of.table(), 0).flatten();
        Ok(self.pages_of(held, self.retained_length(sequence), layer))
    }

    /// Tokens of a sequence that are still in its window, with those of an open step: as many as its pages have. 0
    /// for an unknown one.
    #[must_use]
    pub fn retained_length(&self, sequence: u64) -> u32 {
        let left = |of: &Sequence| of.end() - of.content().gap(self.window, self.block_size()).len() as u32;
        self.sequences.find(sequence).map_or(0, left)
    }

    /// What each block is: free (0), cached (1) or active (2), as [`PoolStats`](super::PoolStats) counts them. O(blocks).
    pub fn block_states(&self) -> Result<Vec<u8>> {
        let blocks = self.tables.pool().blocks();
        let mut states = Vec::new();
        reserve(&mut states, blocks.capacity() as usize, "states of blocks")?;
        states.extend((0..blocks.capacity()).map(|block| match blocks.count(block) {
            0 => u8::from(blocks.is_cached(block)),
            _ => 2,
        }));
        Ok(states)
    }

    /// The blocks of a sequence, in order; [`NO_BLOCK`] where one left the window.
    pub fn blocks_of(&self, sequence: u64) -> Result<Vec<i32>> {
        let table = self.sequences.find(sequence)?.table();
        let mut blocks = Vec::new();
        reserve(&mut blocks, table.len() as usize, "blocks of a sequence")?;
        blocks.extend(self.tables.iter(table, 0).map(|block| block.map_or(NO_BLOCK, |block| block as i32)));
        Ok(blocks)
    }

    /// How many leading tokens of a sequence are these: only tokens whose ids are known are compared.
    pub fn common_length(&self, sequence: u64, tokens: &[u32]) -> Result<u32> {
        Ok(self.sequences.find(sequence)?.content().common(tokens, &self.tables))
    }

    /// The positions of a sequence that left its window.
    pub fn gap(&self, sequence: u64) -> Result<Range<u32>> {
        Ok(self.sequences.find(sequence)?.content().gap(self.window, self.block_size()))
    }

    /// The tree of a sequence's last tokens, with those of an open step; none where they are a chain.
    pub fn tree(&self, sequence: u64) -> Result<Option<Tree>> {
        self.sequences.find(sequence)?.tree()
    }

    /// The pages of a layer in these blocks, the first `length` slots of them.
    pub fn pages_of(
        &self,
        blocks: impl Iterator<Item = u32>,
        length: u32,
        layer: u32,
    ) -> impl Iterator<Item = PageRead> {
        let (block_size, mut left) = (self.block_size(), length);
        blocks.map_while(move |block| {
            let tokens = left.min(block_size);
            left -= tokens;
            (tokens > 0).then(|| PageRead { block, tokens, staged: self.staged(block, layer) })
        })
    }

    /// The positions that have left the window, by a row of a step's table: its one run of [`NO_BLOCK`]. It may reach up to the last
    /// token; queries that would see it are refused elsewhere. Refuses a row that points outside the slab or has too few blocks for
    /// `length` tokens, and names it and `layer`.
    pub fn check_table(&self, row: usize, layer: u32, blocks: &[i32], length: u32) -> Result<Range<u32>> {
        self.check_layer(layer)?;
        let block_size = self.block_size();
        let capacity = blocks.len() as u64 * u64::from(block_size);
        if u64::from(length) > capacity {
            let (sequence, position) = (row as u64, length.into());
            return Err(Error::PositionOutOfRange { sequence, layer, position, length: capacity });
        }
        let blocks = &blocks[..length.div_ceil(block_size) as usize];
        let is_gone = |block: &&i32| **block == NO_BLOCK && self.window.is_some();
        let first = blocks.iter().position(|block| is_gone(&block)).unwrap_or(blocks.len());
        let behind = first + blocks[first..].iter().take_while(is_gone).count();
        let outside =
            |&&block: &&i32| u32::try_from(block).map_or(true, |block| block >= self.tables.pool().blocks().capacity());
        match blocks[..first].iter().chain(&blocks[behind..]).find(outside) {
            Some(&block) => Err(Error::InvalidBlock { block: block.into(), reason: "not a block of this slab" }),
            None if first == behind => Ok(0..0),
            None => Ok(first as u32 * block_size..length.min(behind as u32 * block_size)),
        }
    }

    /// Whether a bulk read of the first `tokens` slots of a page would show what another sequence wrote.
    #[must_use]
    pub fn exposes(&self, block: u32, layer: u32, tokens: u32) -> bool {
        self.tables.pool().is_dirty(block, layer) && !self.tables.pool().marks().has_all(block, layer, 0..tokens)
    }

    /// Whether a bulk read of some page of a block may show what another sequence wrote.
    #[must_use]
    pub fn exposes_block(&self, block: u32) -> bool {
        self.tables.pool().is_exposed(block)
    }

    /// The runs of unwritten slots of a page, up to slot `tokens`.
    pub fn unwritten(&self, block: u32, layer: u32, tokens: u32) -> impl Iterator<Item = Range<u32>> {
        let mut slot = if self.tables.pool().marks().has_all(block, layer, 0..tokens) { tokens } else { 0 };
        std::iter::from_fn(move || {
            let marked = |slot: &u32| self.tables.pool().marks().get(block, layer, *slot);
            let start = (slot..tokens).find(|slot| !marked(slot))?;
            slot = (start..tokens).find(marked).unwrap_or(tokens);
            Some(start..slot)
        })
    }

    /// Notes that the unwritten slots of a page were zeroed.
    pub fn cleaned(&mut self, block: u32, layer: u32) {
        self.tables.pool_mut().clean(block, layer);
    }
}
