//! Reads: the pages that contain a sequence's tokens, and the slots of them that were never written.
//!
//! A page is *dirty* while unmarked slots of it may contain rows of another sequence. It is zeroed only before a bulk
//! read, so a page that is written as a whole is never zeroed. A page costs O(block_size / 64).

use std::ops::Range;

use super::paged_planner::PagedPlanner;
use super::step_tables::NO_BLOCK;
use crate::error::{Error, Result, reserve};
use crate::paged::pages::{Page, PageRead, Slot};
use crate::paged::sequence::Sequence;
use crate::tree::Tree;

impl PagedPlanner {
    /// Returns the slot of a written token of a layer.
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

    /// True for a staged page whose quantised form is in the slab as well.
    #[must_use]
    pub fn is_sealed_copy(&self, block: u32, layer: u32) -> bool {
        self.tables.pool().staging().is_sealed(Page { block, layer })
    }

    /// The pages that are staged, in no order.
    pub fn staged_pages(&self) -> impl Iterator<Item = Page> {
        self.tables.pool().staging().pages()
    }

    /// The pages of a layer that contain a sequence's tokens, in order, including those of an open step.
    pub fn pages(&self, sequence: u64, layer: u32) -> Result<impl Iterator<Item = PageRead>> {
        self.check_layer(layer)?;
        let of = self.sequences.find(sequence)?;
        let gap = of.content().passed(self.window, self.block_size());
        let before = self.tables.iter(of.table(), 0).take(gap.start as usize);
        let held = before.chain(self.tables.iter(of.table(), gap.end)).flatten();
        Ok(self.pages_of(held, self.retained_length(sequence), layer))
    }

    /// Number of a sequence's tokens that are still in its window, including those of an open step: as many as its
    /// pages contain. 0 for an unknown sequence.
    #[must_use]
    pub fn retained_length(&self, sequence: u64) -> u32 {
        if self.keeps_states {
            return self.sequences.find(sequence).map_or(0, Sequence::end);
        }
        let left = |of: &Sequence| of.end() - of.content().gap(self.window, self.block_size()).len() as u32;
        self.sequences.find(sequence).map_or(0, left)
    }

    /// The state of each block: free (0), cached (1) or active (2), as [`PoolStats`](super::PoolStats) counts them.
    /// O(blocks).
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

    /// The blocks of a sequence, in order; [`NO_BLOCK`] for those that left the window.
    pub fn blocks_of(&self, sequence: u64) -> Result<Vec<i32>> {
        let table = self.sequences.find(sequence)?.table();
        let mut blocks = Vec::new();
        reserve(&mut blocks, table.len() as usize, "blocks of a sequence")?;
        blocks.extend(self.tables.iter(table, 0).map(|block| block.map_or(NO_BLOCK, |block| block as i32)));
        Ok(blocks)
    }

    /// Number of leading tokens that a sequence has in common with `tokens`, as far as the sequence's ids are known.
    pub fn common_length(&self, sequence: u64, tokens: &[u32]) -> Result<u32> {
        let content = self.sequences.find(sequence)?.content();
        if self.keeps_states {
            return Ok(content.common_state(tokens, &self.tables));
        }
        Ok(content.common(tokens, &self.tables))
    }

    /// The positions of a sequence that left its window.
    pub fn gap(&self, sequence: u64) -> Result<Range<u32>> {
        let content = self.sequences.find(sequence)?.content();
        if self.keeps_states { Ok(0..0) } else { Ok(content.gap(self.window, self.block_size())) }
    }

    /// The tree of a sequence's last tokens, including those of an open step; [`None`] if they are a chain.
    pub fn tree(&self, sequence: u64) -> Result<Option<Tree>> {
        self.sequences.find(sequence)?.tree()
    }

    /// The pages of a layer in these blocks, up to the first `length` slots.
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
            (tokens > 0).then(|| PageRead {
                block,
                tokens,
                staged: self.staged(block, layer),
                is_sealed: self.is_sealed_copy(block, layer),
            })
        })
    }

    /// Returns the positions that have left the window according to a row of a step's table: its one run of
    /// [`NO_BLOCK`]. The run may reach up to the last token; other checks reject queries that would attend to it.
    /// Returns an error that names `row` and `layer` if the row points outside the slab or has too few blocks for
    /// `length` tokens.
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

    /// True if a bulk read of the first `tokens` slots of a page would return rows of another sequence.
    #[must_use]
    pub fn exposes(&self, block: u32, layer: u32, tokens: u32) -> bool {
        self.tables.pool().is_dirty(block, layer) && !self.tables.pool().marks().has_all(block, layer, 0..tokens)
    }

    /// True if a bulk read of some page of a block may return rows of another sequence.
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

    /// Records that the unwritten slots of a page were zeroed.
    pub fn cleaned(&mut self, block: u32, layer: u32) {
        self.tables.pool_mut().clean(block, layer);
    }
}
