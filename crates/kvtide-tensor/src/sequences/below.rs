//! Blocks that go down to somewhere below, and come back for a prompt.
//!
//! ```text
//! set_below        who takes blocks: as they make room, as they get a name, as they are found
//! hand_down        those that got a name since the last call
//!
//! prompt_blocks    what of a prompt is here, and what it lacks
//! begin_return     blocks that are here stay; new ones for the others         on the cache's thread
//! Returning        bytes into those, from any thread
//! end_return       prompts find those that came                               on the cache's thread
//! ```
//!
//! O(blocks of the prompt).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kvtide_core::paged::{BlockName, PageLayout, PromptBlocks, prompt_in_groups};

use super::cache::PagedKvCache;
use super::prefix_namer::PromptOptions;
use super::saved::NewBlocks;
use crate::base::error::{Error, Result};
use crate::paged::{Below, Hold, PageGroup};

/// The part of what waits that goes down at one call at least.
const BACKLOG_PARTS: usize = 16;

/// Blocks of a prompt that come back from below. Dropped, it gives back the blocks that were not named.
#[derive(Debug)]
pub struct Returning {
    blocks: PromptBlocks,
    /// Blocks of the prefix that it is about.
    length: usize,
    /// The places of each group's new blocks.
    places: Vec<Vec<usize>>,
    new: NewBlocks,
    /// Whether all bytes of a new block were written.
    is_there: Vec<Vec<AtomicBool>>,
    /// Keeps what is here as it is.
    _kept: Vec<Hold>,
}

impl Returning {
    /// The prompt's blocks.
    #[must_use]
    pub fn blocks(&self) -> &PromptBlocks {
        &self.blocks
    }

    /// Blocks of the prefix that is there once all of them came.
    #[must_use]
    pub fn length(&self) -> usize {
        self.length
    }

    /// The places of the blocks that are wanted for a group, ascending.
    #[must_use]
    pub fn places(&self, group: usize) -> &[usize] {
        &self.places[group]
    }

    /// Writes a block, whole: the `row`th of those that are wanted for a group. Once.
    pub fn write(&self, group: usize, row: usize, bytes: &[u8]) -> Result<()> {
        self.new.pages[group].write(row as u32, bytes)?;
        self.is_there[group][row].store(true, Ordering::Release);
        Ok(())
    }

    /// Whether a block came.
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
    /// Hands its blocks down from now on: those that make room by themselves, those that get a name at [`PagedKvCache::hand_down`].
    /// Refused where there is somebody already.
    pub fn set_below(&mut self, below: Arc<dyn Below>) -> Result<()> {
        self.check_all(|_| Ok(()))?;
        if self.has_below {
            return Err(Error::argument("below", "another", "one for a cache"));
        }
        self.has_below = true;
        (0..).zip(&mut self.groups).for_each(|(at, group)| group.set_below(below.clone(), at));
        Ok(())
    }

    /// Hands down what got a name, until `most` bytes were copied, or a part of what waits where that is more: whoever has more at each
    /// call does not fall behind for good. Each group gives its share, and a block at least. Answers whether there is more. To be called
    /// after whatever may have given names; O(1) where nothing did.
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

    /// The blocks of a prompt, and where they are found.
    pub fn prompt_blocks(&mut self, tokens: &[u32], options: PromptOptions<'_>) -> Result<PromptBlocks> {
        self.collect()?;
        let identity = self.namer.identity(options)?;
        let planners: Vec<_> = self.groups.iter().map(PageGroup::planner).collect();
        Ok(prompt_in_groups(&planners, tokens, &identity)?)
    }

    /// Takes new blocks for what a prompt lacks, as far as there are free ones: `there` says which blocks of which group can come. What
    /// is here of the prompt stays meanwhile; other blocks that nobody holds make room.
    pub fn begin_return(
        &mut self,
        tokens: &[u32],
        options: PromptOptions<'_>,
        mut there: impl FnMut(usize, &BlockName<'_>) -> bool,
    ) -> Result<Returning> {
        self.check_all(|_| Ok(()))?;
        let blocks = self.prompt_blocks(tokens, options)?;
        let mut can_come = |group: usize, place: usize| there(group, &blocks.name(place));
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
                // Each block less is at most one less that is missing.
                lacking => length = blocks.reach(length.saturating_sub(lacking), &mut can_come),
            }
        }
        let places: Vec<Vec<usize>> =
            (0..self.groups.len()).map(|group| blocks.missing(group, length).collect()).collect();
        let rows: Vec<Vec<u32>> = places.iter().map(|places| (0..places.len() as u32).collect()).collect();
        let new = self.new_at(&rows.iter().map(|rows| (&rows[..], rows.len() as u32)).collect::<Vec<_>>())?;
        let is_there = places.iter().map(|places| places.iter().map(|_| AtomicBool::new(false)).collect()).collect();
        Ok(Returning { blocks, length, places, new, is_there, _kept: kept })
    }

    /// Lets prompts find the blocks that came: as far as a prefix of them goes. Answers how many blocks that are, in the group with the
    /// most. Others may still be written while this is called, and do not count.
    pub fn end_return(&mut self, returning: &Returning) -> Result<u32> {
        self.check_held(returning.new.cache())?;
        self.check_all(|_| Ok(()))?;
        let mut named = 0;
        for (at, group) in self.groups.iter_mut().enumerate() {
            let came: Vec<_> = returning.came(at).collect();
            group.note_roots(&[*returning.blocks.root()]);
            named = named.max(came.len() as u32);
            group.name_new(&returning.new.pages[at], came.into_iter())?;
        }
        Ok(named)
    }

    /// The layouts of pages, for whoever keeps blocks: the bytes of each group's.
    #[must_use]
    pub fn block_bytes(&self) -> Vec<usize> {
        self.layouts().map(|layout: PageLayout| layout.block_bytes()).collect()
    }
}
