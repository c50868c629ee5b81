//! Offloading of a group's blocks: they are copied before they are evicted, once they are hashed, or on a cache hit, as the
//! offload policy says.
//!
//! The tiers first say whether they want a block. Each wanted block is copied once, on the cache's thread; O(bytes) of the
//! wanted blocks.

use std::collections::VecDeque;
use std::sync::Arc;

use kvtide_core::paged::BlockName;

use super::below::{Below, BelowGroup, Descent};
use super::group::PageGroup;
use super::hold::Hold;
use super::saved::PageWriter;
use crate::base::error::Result;

impl PageGroup {
    /// Offloads blocks from now on, as group `at` of its cache.
    pub fn set_below(&mut self, below: Arc<dyn Below>, at: usize) {
        self.planner.note_named();
        self.below = Some(BelowGroup { taker: below, at, named: VecDeque::new() });
    }

    /// Offloads the blocks that the last reservation evicts, before they are overwritten.
    pub(super) fn hand_down_evicted(&mut self) {
        if self.below.is_some() {
            self.hand_down(self.planner.evicted_next().collect::<Vec<_>>(), Descent::Evicted);
        }
    }

    /// Offloads blocks that [`PageGroup::collect_named`] collected, the oldest first, until `most` bytes were copied.
    pub fn hand_down_named(&mut self, most: usize) {
        let mut copied = 0;
        while copied < most
            && let Some(block) = self.below.as_mut().and_then(|below| below.named.pop_front())
        {
            copied += self.hand_down([block], Descent::Named);
        }
    }

    /// Collects newly hashed blocks. Returns the bytes of those that were not offloaded yet; some may have lost their key
    /// since.
    pub fn collect_named(&mut self) -> usize {
        let Some(below) = &mut self.below else { return 0 };
        below.named.extend(self.planner.take_named());
        below.named.len() * self.slabs.slab.layout.block_bytes()
    }

    /// True if some hashed blocks were not offloaded yet.
    pub fn has_named(&self) -> bool {
        self.below.as_ref().is_some_and(|below| !below.named.is_empty() || self.planner.has_named())
    }

    /// Offloads the blocks of a prefix that was hit.
    pub fn hand_down_found(&self, hold: &Hold) {
        if self.below.is_some()
            && let Some(held) = self.held.get(&hold.id())
        {
            self.hand_down(self.planner.held_blocks(held).collect::<Vec<_>>(), Descent::Found);
        }
    }

    fn hand_down(&self, blocks: impl IntoIterator<Item = u32>, why: Descent) -> usize {
        let Some(BelowGroup { taker, at, .. }) = &self.below else { return 0 };
        let mut copied = 0;
        for block in blocks {
            // A prefix may end within a block, whose key then stands for more tokens.
            if let Some(name) = self.planner.block_name(block)
                && taker.wants(*at, &name.key, why)
            {
                taker.take(*at, &name, why, &mut |out| self.slabs.slab.add_block(block, out));
                copied += self.slabs.slab.layout.block_bytes();
            }
        }
        copied
    }

    /// Invalidates all offloaded blocks: they must not be hit any more.
    pub(super) fn forget_below(&mut self) {
        if let Some(below) = &mut self.below {
            below.named.clear();
            below.taker.forget();
        }
    }

    /// Holds blocks that prompts can hit.
    pub fn keep_found(&mut self, blocks: &[u32]) -> Result<Hold> {
        self.change()?;
        let held = self.planner.keep(blocks)?;
        self.keep(held)
    }

    /// Hashes some of the new blocks, whose bytes were all written, unless prompts can already hit such a block.
    pub fn name_new<'a>(&mut self, pages: &PageWriter, rows: impl Iterator<Item = (u32, BlockName<'a>)>) -> Result<()> {
        self.change()?;
        for (row, name) in rows {
            if !self.planner.is_found(&name.key) {
                self.planner.name_new(pages.block(row), &name)?;
            }
        }
        Ok(())
    }
}
