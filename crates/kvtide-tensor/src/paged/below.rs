//! Blocks of a group on their way down: copied before something else is written to them, once they got a name, or when they are found.
//!
//! Whoever takes them says first whether it wants a block. One copy each, on the thread of the cache; O(bytes) of those that are wanted.

use std::collections::VecDeque;
use std::sync::Arc;

use kvtide_core::paged::{BlockKey, BlockName};

use super::group::PageGroup;
use super::hold::Hold;
use super::saved::PageWriter;
use crate::base::error::Result;

/// Why a block could go down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Descent {
    /// It got its name.
    Named,
    /// A prompt found it.
    Found,
    /// Another block takes its place.
    Evicted,
}

/// What lies below a cache and takes its blocks. It is called on the cache's thread: it has to answer at once, and must not panic.
pub trait Below: Send + Sync + std::fmt::Debug {
    /// Whether it would take a block of a group now.
    fn wants(&self, group: usize, key: &BlockKey, why: Descent) -> bool;

    /// Takes a block that it wanted. `copy` adds as many bytes as a block of the group has, all layers, for which there must be room.
    fn take(&self, group: usize, name: &BlockName<'_>, why: Descent, copy: &mut dyn FnMut(&mut Vec<u8>) -> Result<()>);

    /// Nothing of what it took is to be found any more.
    fn forget(&self);
}

/// What lies below a group.
#[derive(Debug)]
pub(crate) struct BelowGroup {
    taker: Arc<dyn Below>,
    /// Which of the cache's groups it is.
    at: usize,
    /// Blocks that got a name and were not handed down yet, the oldest first; some may have lost it since.
    named: VecDeque<u32>,
}

impl PageGroup {
    /// Hands blocks down from now on, as the `at`th group of its cache.
    pub fn set_below(&mut self, below: Arc<dyn Below>, at: usize) {
        self.planner.note_named();
        self.below = Some(BelowGroup { taker: below, at, named: VecDeque::new() });
    }

    /// Hands down the blocks that make room for those that memory was just reserved for: before anything is written to them.
    pub(super) fn hand_down_evicted(&mut self) {
        if self.below.is_some() {
            self.hand_down(self.planner.evicted_next().collect::<Vec<_>>(), Descent::Evicted);
        }
    }

    /// Hands down blocks that [`PageGroup::collect_named`] collected, the oldest first, until `most` bytes were copied.
    pub fn hand_down_named(&mut self, most: usize) {
        let mut copied = 0;
        while copied < most
            && let Some(block) = self.below.as_mut().and_then(|below| below.named.pop_front())
        {
            copied += self.hand_down([block], Descent::Named);
        }
    }

    /// Collects the blocks that got a name. Answers the bytes of those that were not handed down yet; some may have lost their name since.
    pub fn collect_named(&mut self) -> usize {
        let Some(below) = &mut self.below else { return 0 };
        below.named.extend(self.planner.take_named());
        below.named.len() * self.slabs.slab.layout.block_bytes()
    }

    /// Whether some that got a name were not handed down yet.
    pub fn has_named(&self) -> bool {
        self.below.as_ref().is_some_and(|below| !below.named.is_empty() || self.planner.has_named())
    }

    /// Hands down the blocks of a prefix that was found.
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
            // A prefix may end within a block, which then has a name of more tokens.
            if let Some(name) = self.planner.block_name(block)
                && taker.wants(*at, &name.key, why)
            {
                taker.take(*at, &name, why, &mut |out| self.slabs.slab.add_block(block, out));
                copied += self.slabs.slab.layout.block_bytes();
            }
        }
        copied
    }

    /// Says that nothing of what went down is to be found any more.
    pub(super) fn forget_below(&mut self) {
        if let Some(below) = &mut self.below {
            below.named.clear();
            below.taker.forget();
        }
    }

    /// Holds blocks that are found.
    pub fn keep_found(&mut self, blocks: &[u32]) -> Result<Hold> {
        self.change()?;
        let held = self.planner.keep(blocks)?;
        self.keep(held)
    }

    /// Names some of the new blocks, whose bytes were all written, where prompts do not find such a name already.
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
