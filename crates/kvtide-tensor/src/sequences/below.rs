//! Offloading of blocks to the tiers below a cache, and restoring them for a prompt.
//!
//! ```text
//! set_below        registers the tiers: blocks are offloaded on eviction, once they are hashed, or on a cache hit
//! hand_down        offloads the blocks that were hashed since the last call
//!
//! prompt_blocks    the blocks of a prompt: cached ones and missing ones
//! begin_return     holds cached blocks, takes new ones for the others         on the cache's thread
//! Returning        receives their bytes, from any thread
//! end_return       makes the restored blocks visible to prompts               on the cache's thread
//! ```
//!
//! O(blocks of the prompt).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kvtide_core::paged::{BlockName, PageLayout, PromptBlocks, prompt_in_groups, prompt_in_groups_again};

use super::cache::PagedKvCache;
use super::prefix_namer::PromptOptions;
use super::saved::NewBlocks;
use crate::base::error::{Error, Result};
use crate::paged::{Below, Hold, PageGroup};

/// Each call offloads at least this fraction of the backlog: one part in so many.
const BACKLOG_PARTS: usize = 16;

/// A restore of a prompt's blocks from the tiers below. Dropping it frees the blocks that were not named.
#[derive(Debug)]
pub struct Returning {
    blocks: PromptBlocks,
    /// The number of blocks in the prefix that it restores.
    length: usize,
    /// The places of each group's new blocks.
    places: Vec<Vec<usize>>,
    new: NewBlocks,
    /// For each new block, true if all its bytes were written.
    is_there: Vec<Vec<AtomicBool>>,
    /// Holds the cached blocks.
    _kept: Vec<Hold>,
}

impl Returning {
    /// The blocks of the prompt.
    #[must_use]
    pub fn blocks(&self) -> &PromptBlocks {
        &self.blocks
    }

    /// The number of blocks in the prefix that is cached once all of them have arrived.
    #[must_use]
    pub fn length(&self) -> usize {
        self.length
    }

    /// The places of the blocks that are wanted for a group, ascending.
    #[must_use]
    pub fn places(&self, group: usize) -> &[usize] {
        &self.places[group]
    }

    /// Writes a whole block: number `row` of those that are wanted for a group. Each block is written once.
    pub fn write(&self, group: usize, row: usize, bytes: &[u8]) -> Result<()> {
        self.new.pages[group].write(row as u32, bytes)?;
        self.is_there[group][row].store(true, Ordering::Release);
        Ok(())
    }

    /// True if a block has arrived.
    #[must_use]
    pub fn is_there(&self, group: usize, row: usize) -> bool {
        self.is_there[group][row].load(Ordering::Acquire)
    }

    fn came(&self, group: usize) -> impl Iterator<Item = (u32, BlockName<'_>)> {
        let rows = self.places[group].iter().enumerate().filter(move |(row, _)| self.is_there(group, *row));
        rows.map(|(row, &place)| (row as u32, self.blocks.name(place)))
    }
}

impl PagedKvCache {
    /// Offloads blocks from now on: evicted ones automatically, newly hashed ones at [`PagedKvCache::hand_down`]. Fails if
    /// tiers are already registered.
    pub fn set_below(&mut self, below: Arc<dyn Below>) -> Result<()> {
        self.check_all(|_| Ok(()))?;
        if self.has_below {
            return Err(Error::argument("below", "another", "at most one for a cache"));
        }
        self.has_below = true;
        (0..).zip(&mut self.groups).for_each(|(at, group)| group.set_below(below.clone(), at));
        Ok(())
    }

    /// Offloads newly hashed blocks until `most` bytes were copied, or a fixed fraction of the backlog if that is more, so
    /// that the backlog cannot grow without bound. Each group offloads its share, and at least one block. Returns true if
    /// some are left. Call it after every call that may hash blocks; O(1) if there are none.
    pub fn hand_down(&mut self, most: usize) -> bool {
        if !self.has_below || !self.groups.iter().any(PageGroup::has_named) {
            return false;
        }
        let waiting: Vec<usize> = self.groups.iter_mut().map(PageGroup::collect_named).collect();
        let all = waiting.iter().sum::<usize>().max(1);
        let most = most.max(all / BACKLOG_PARTS);
        for (group, bytes) in self.groups.iter_mut().zip(waiting) {
            let share = most as u128 * bytes as u128 / all as u128;
            group.hand_down_named(usize::try_from(share).unwrap_or(usize::MAX).max(1));
        }
        self.groups.iter().any(PageGroup::has_named)
    }

    pub(super) fn hand_down_found(&self, found: &[Hold]) {
        if self.has_below {
            self.groups.iter().zip(found).for_each(|(group, hold)| group.hand_down_found(hold));
        }
    }

    /// The blocks of a prompt, and where they are cached.
    pub fn prompt_blocks(&mut self, tokens: &[u32], options: PromptOptions<'_>) -> Result<PromptBlocks> {
        self.collect()?;
        let identity = self.namer.identity(options)?;
        let planners: Vec<_> = self.groups.iter().map(PageGroup::planner).collect();
        Ok(prompt_in_groups(&planners, tokens, &identity)?)
    }

    /// Takes new blocks for the missing blocks of a prompt, as far as there are free ones: `there` says which blocks of
    /// which group can be restored. Cached blocks of the prompt are held meanwhile; free cached blocks of other prompts are
    /// evicted. Restored blocks get no key if prefixes were forgotten after the count `since`, at which the tiers were
    /// searched for the prompt.
    pub fn begin_return(
        &mut self,
        blocks: &PromptBlocks,
        since: u64,
        mut there: impl FnMut(usize, &BlockName<'_>) -> bool,
    ) -> Result<Returning> {
        self.check_all(|_| Ok(()))?;
        self.collect()?;
        let planners: Vec<_> = self.groups.iter().map(PageGroup::planner).collect();
        let blocks = prompt_in_groups_again(&planners, blocks)?;
        let is_current = since == self.forgotten();
        let mut can_come = |group: usize, place: usize| is_current && there(group, &blocks.name(place));
        let mut length = blocks.reach(blocks.len(), &mut can_come);
        let mut kept = Vec::new();
        for (at, group) in self.groups.iter_mut().enumerate() {
            let here: Vec<u32> = (0..blocks.len()).filter_map(|place| blocks.found(at, place)).collect();
            kept.push(group.keep_found(&here)?);
        }
        loop {
            let lacks = |(at, group): (usize, &PageGroup)| {
                let free = group.planner().free_count() as usize;
                blocks.missing(at, length).count().saturating_sub(free)
            };
            match self.groups.iter().enumerate().map(lacks).max().unwrap_or(0) {
                0 => break,
                // With each block less, at most one block less is missing.
                lacking => length = blocks.reach(length.saturating_sub(lacking), &mut can_come),
            }
        }
        let places: Vec<Vec<usize>> =
            (0..self.groups.len()).map(|group| blocks.missing(group, length).collect()).collect();
        let rows: Vec<Vec<u32>> = places.iter().map(|places| (0..places.len() as u32).collect()).collect();
        let new = self.new_at(&rows.iter().map(|rows| (&rows[..], rows.len() as u32)).collect::<Vec<_>>())?;
        let new = new.since(since);
        let is_there = places.iter().map(|places| places.iter().map(|_| AtomicBool::new(false)).collect()).collect();
        Ok(Returning { blocks, length, places, new, is_there, _kept: kept })
    }

    /// Makes the restored blocks visible to prompts, as far as they form a prefix. Returns the number of these blocks in the
    /// group with the most; 0 if prefixes were forgotten meanwhile. Other blocks may still be written during this call; they
    /// do not count.
    pub fn end_return(&mut self, returning: &Returning) -> Result<u32> {
        self.check_held(returning.new.cache())?;
        self.check_all(|_| Ok(()))?;
        let mut named = 0;
        if !self.is_current(&returning.new) {
            return Ok(named);
        }
        for (at, group) in self.groups.iter_mut().enumerate() {
            let came: Vec<_> = returning.came(at).collect();
            group.note_roots(&[*returning.blocks.root()]);
            named = named.max(came.len() as u32);
            group.name_new(&returning.new.pages[at], came.into_iter())?;
        }
        Ok(named)
    }

    /// The bytes of a block in each group, for storage of blocks.
    #[must_use]
    pub fn block_bytes(&self) -> Vec<usize> {
        self.layouts().map(|layout: PageLayout| layout.block_bytes()).collect()
    }
}
