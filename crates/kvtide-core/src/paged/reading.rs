//! Reads: in which pages a sequence's tokens lie, and which of their slots hold nothing of it yet.
//!
//! A page is *dirty* while its slots that are not marked may hold what another sequence wrote. Nobody zeroes it before it is
//! read in bulk: a page that is written whole never is.
//!
//! A page costs O(block_size / 64).

use std::ops::Range;

use super::sequences::PagedPlanner;
use super::slot::Slot;
use super::staging::Page;
use crate::error::{Error, Result};

/// A page with tokens to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRead {
    /// Index of the block in the slab.
    pub block: u32,
    /// Tokens in it.
    pub tokens: u32,
    /// Its staging page, when its rows lie there.
    pub staged: Option<u32>,
}

impl PagedPlanner {
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

    /// The staging page of a page, when its rows lie there.
    #[must_use]
    pub fn staged(&self, block: u32, layer: u32) -> Option<u32> {
        self.staging.get(Page { block, layer })
    }

    /// The pages of a layer that hold a sequence's tokens, in order.
    pub fn pages(&self, sequence: u64, layer: u32) -> Result<impl Iterator<Item = PageRead>> {
        self.check_layer(layer)?;
        let held = self.sequence(sequence)?;
        Ok(self.pages_of(held.blocks.iter().map(|handle| handle.index()), held.length, layer))
    }

    /// The pages of a layer in these blocks, the first `length` slots of them.
    pub fn pages_of(
        &self,
        blocks: impl Iterator<Item = u32>,
        length: u32,
        layer: u32,
    ) -> impl Iterator<Item = PageRead> {
        let (block_size, mut left) = (self.block_size, length);
        blocks.map_while(move |block| {
            let tokens = left.min(block_size);
            left -= tokens;
            (tokens > 0).then(|| PageRead { block, tokens, staged: self.staged(block, layer) })
        })
    }

    /// Refuses a row of a step's table that points outside the slab, or has not enough blocks for `length` tokens. `row` and
    /// `layer` are named in the error.
    pub fn check_table(&self, row: usize, layer: u32, blocks: &[i32], length: u32) -> Result<()> {
        self.check_layer(layer)?;
        let capacity = blocks.len() as u64 * u64::from(self.block_size);
        if u64::from(length) > capacity {
            let (sequence, position) = (row as u64, length.into());
            return Err(Error::PositionOutOfRange { sequence, layer, position, length: capacity });
        }
        let outside = |&&block: &&i32| u32::try_from(block).map_or(true, |block| block >= self.pool.capacity());
        match blocks[..length.div_ceil(self.block_size) as usize].iter().find(outside) {
            Some(&block) => {
                Err(Error::InvalidBlock { block: (block as u32).into(), reason: "not a block of this slab" })
            }
            None => Ok(()),
        }
    }

    /// Whether a bulk read of the first `tokens` slots of a page would show what another sequence wrote there.
    #[must_use]
    pub fn exposes(&self, block: u32, layer: u32, tokens: u32) -> bool {
        self.dirty.contains(block, layer)
            && self.staged(block, layer).is_none()
            && !self.marks.has_all(block, layer, 0..tokens)
    }

    /// The runs of slots of a page that nobody has written, up to slot `tokens`.
    pub fn unwritten(&self, block: u32, layer: u32, tokens: u32) -> impl Iterator<Item = Range<u32>> {
        let mut slot = if self.marks.has_all(block, layer, 0..tokens) { tokens } else { 0 };
        std::iter::from_fn(move || {
            let marked = |slot: &u32| self.marks.get(block, layer, *slot);
            let start = (slot..tokens).find(|slot| !marked(slot))?;
            slot = (start..tokens).find(marked).unwrap_or(tokens);
            Some(start..slot)
        })
    }

    /// Notes that the slots of a page that nobody has written are zeros now.
    pub fn cleaned(&mut self, block: u32, layer: u32) {
        self.dirty.remove(block, layer);
    }
}
