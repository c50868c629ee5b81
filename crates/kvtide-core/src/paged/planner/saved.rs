//! Saving the content of a planner, and loading it.
//!
//! ```text
//! found_blocks, block_name     cached blocks, each with its name               hold_new -> bytes -> name_new, release
//! saved_content, saved_row     the blocks of a sequence, and its tokens         hold_new -> bytes -> stage_saved -> settle
//! ```
//!
//! Loaded content is held in new blocks first, which prompts do not find. Then its bytes are written, and then it gets
//! its name or its sequence. If the caller stops earlier, it releases the held blocks, and nothing is left. O(blocks),
//! and the tokens in them.

use super::paged_planner::PagedPlanner;
use crate::count::COUNT_MAX;
use crate::error::{Error, Result, reserve};
use crate::paged::index::{BlockKey, BlockName, Identity};
use crate::paged::pages::Page;
use crate::paged::sequence::{Content, HeldContent, KeyChain, SavedChain};
use crate::paged::table::{Reservation, Table};

const WHAT: &str = "blocks that are saved";

/// The content of a sequence in one group of layers, without the bytes of its blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedContent {
    /// Number of tokens.
    pub length: u32,
    /// Places before this one, except those of sinks, left the window.
    pub cleared: u32,
    /// The places that have a block, ascending.
    pub places: Vec<u32>,
    /// The known ids and keys of its tokens.
    pub chain: SavedChain,
}

impl SavedContent {
    /// Number of slots that its tokens use in the block at a place.
    #[must_use]
    pub fn kept(&self, place: u32, size: u32) -> u32 {
        self.length.saturating_sub(place * size).min(size)
    }
}

/// The tokens and marks of a sequence's block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SavedRow {
    /// The ids of its tokens; arbitrary for tokens whose ids are not known.
    pub tokens: Vec<u32>,
    /// The marks of written slots, one bit each, lowest first; each layer starts at a new byte. [`None`] if all slots
    /// were written.
    pub marks: Option<Vec<u8>>,
    /// The layers whose pages are in floats.
    pub staged: Vec<u32>,
}

/// Bytes of one layer's marks.
fn mark_bytes(block_size: u32) -> usize {
    block_size.div_ceil(8) as usize
}

impl PagedPlanner {
    /// The blocks in the prefix cache: first those that are not held, in the order of eviction, then the others.
    pub fn found_blocks(&self) -> Result<Vec<u32>> {
        let pool = self.tables.pool();
        let mut found = Vec::new();
        reserve(&mut found, pool.index().len() as usize, WHAT)?;
        found.extend(pool.blocks().upcoming().filter(|taken| taken.evicted).map(|taken| taken.block));
        let held = |&block: &u32| pool.blocks().count(block) > 0 && pool.index().is_indexed(block);
        found.extend((0..pool.blocks().touched()).filter(held));
        Ok(found)
    }

    /// The name of a block in the prefix cache; [`None`] for other blocks. It contains only the tag of the parent's
    /// key.
    #[must_use]
    pub fn block_name(&self, block: u32) -> Option<BlockName<'_>> {
        self.tables.pool().index().name(block)
    }

    /// Number of times that a block lost its key. While a block has a key and this number is unchanged, the block is
    /// not written.
    #[must_use]
    pub fn name_losses(&self, block: u32) -> u32 {
        self.tables.pool().losses(block)
    }

    /// True if a cached block is the first of its prompts.
    #[must_use]
    pub fn is_first_block(&self, block: u32) -> bool {
        self.tables.pool().index().is_first(block)
    }

    /// The latest roots (keys of no token) under which blocks were cached: a hint for explanations.
    #[must_use]
    pub fn roots(&self) -> &[BlockKey] {
        self.tables.pool().index().roots()
    }

    /// Adds a root to these.
    pub fn note_root(&mut self, root: &BlockKey) {
        self.tables.pool_mut().note_root(root);
    }

    /// Returns the held content without the bytes of its blocks. Blocks behind the last token are not included.
    pub fn saved_content(&self, held: &HeldContent) -> Result<SavedContent> {
        let (content, mut places) = (&held.0, Vec::new());
        let covered = content.length().div_ceil(self.block_size());
        let gap = content.passed(self.window, self.block_size());
        reserve(&mut places, (covered - gap.len() as u32) as usize, WHAT)?;
        let there = (0..gap.start).chain(gap.end..covered);
        places.extend(there.filter(|&place| self.tables.get(content.table(), place).is_some()));
        let chain = content.keys().saved()?;
        Ok(SavedContent { length: content.length(), cleared: content.cleared(), places, chain })
    }

    /// The held block at a place.
    #[must_use]
    pub fn held_block(&self, held: &HeldContent, place: u32) -> Option<u32> {
        self.tables.get(held.0.table(), place)
    }

    /// Returns the state of a block whose first `kept` slots belong to the sequence. Later slots may belong to other
    /// holders of the block and are not included.
    #[must_use]
    pub fn saved_row(&self, block: u32, kept: u32) -> SavedRow {
        let (pool, size) = (self.tables.pool(), self.block_size());
        let mut tokens = pool.index().tokens(block).to_vec();
        tokens[kept as usize..].fill(0);
        if (kept == size || self.keeps_states) && pool.is_sealed(block) {
            return SavedRow { tokens, ..SavedRow::default() };
        }
        let is_staged =
            |&layer: &u32| self.staged(block, layer).is_some() && pool.marks().has_any(block, layer, 0..kept);
        let staged = (0..self.num_layers()).filter(is_staged).collect();
        if kept == size && pool.marks().is_whole(block) {
            return SavedRow { tokens, marks: None, staged };
        }
        let mut marks = vec![0; self.num_layers() as usize * mark_bytes(size)];
        for (layer, bytes) in (0..).zip(marks.chunks_exact_mut(mark_bytes(size))) {
            let written = (0..kept).filter(|&slot| pool.marks().get(block, layer, slot));
            written.for_each(|slot| bytes[slot as usize / 8] |= 1 << (slot % 8));
        }
        SavedRow { tokens, marks: Some(marks), staged }
    }

    /// Holds this many places, with new blocks at the given ones, which ascend. Prompts do not find them, and their
    /// slots are unwritten.
    pub fn hold_new(&mut self, places: &[u32], length: u32) -> Result<HeldContent> {
        let ascends = places.windows(2).all(|two| two[0] < two[1]) && places.last().is_none_or(|&last| last < length);
        if !ascends {
            return Err(Error::argument(
                "places",
                places.len(),
                format!("places below {length}, each behind the last"),
            ));
        }
        self.make_room_for_states(places.len() as u64);
        self.state().check_available(places.len() as u64)?;
        // Time and memory depend on the number of blocks, not on the length of the table.
        let gaps = places.windows(2).filter(|two| two[0] + 1 < two[1]).count();
        let room = Reservation { blocks: places.len(), tables: 2 + gaps + places.len() / 32, ..Reservation::default() };
        self.tables.reserve(room)?;
        let mut table = Table::default();
        for &place in places {
            let gap = place - table.len();
            self.tables.lengthen(&mut table, gap);
            self.tables.add_new(&mut table, 1);
        }
        let rest = length - table.len();
        self.tables.lengthen(&mut table, rest);
        self.changed();
        let keys = KeyChain::new(Identity::default(), self.forgotten);
        Ok(HeldContent(Content::saved(table, 0, 0, keys)))
    }

    /// Gives a new block its name after all its bytes were written. Returns an error if the key does not belong to that
    /// name. If another block is found by the key, this one is found after the other is gone.
    pub fn name_new(&mut self, block: u32, name: &BlockName<'_>) -> Result<()> {
        if name.tokens.len() != self.block_size() as usize || !name.holds() {
            return Err(Error::argument("name", "another key", "the key of its tokens behind its parent"));
        }
        let mut extras = Vec::new();
        reserve(&mut extras, name.extras.len(), "bytes of extras")?;
        extras.extend_from_slice(name.extras);
        self.tables.reserve(Reservation { marks: 1, ..Reservation::default() })?;
        self.tables.pool_mut().name_new(block, name, extras);
        Ok(())
    }

    /// True if some block is found by a key.
    #[must_use]
    pub fn is_found(&self, key: &BlockKey) -> bool {
        self.tables.pool().index().contains(key)
    }

    /// Returns the number of staging pages that must exist for this many more pages in floats, and reserves memory for
    /// them.
    pub fn staging_for(&mut self, pages: usize) -> Result<u32> {
        let room = Reservation { staged: pages, ..Reservation::default() };
        self.tables.reserve(room)?;
        Ok(self.tables.staging_pages(room))
    }

    /// Puts a page of a new block in floats, and returns its staging page. Memory for it must be reserved.
    pub fn stage_saved(&mut self, block: u32, layer: u32) -> u32 {
        let pool = self.tables.pool_mut();
        let place = pool.staging().upcoming().next().expect("staging pages go on");
        pool.stage(Page { block, layer }, place);
        place
    }

    /// Returns an error if the content cannot have been saved from a group like this one, with one row for each place.
    pub fn check_saved(&self, saved: &SavedContent, rows: &[SavedRow]) -> Result<()> {
        let (size, layers) = (self.block_size(), self.num_layers());
        let covered = saved.length.div_ceil(size);
        let sinks = self.window.map_or(0, |window| window.sinks().div_ceil(size)).min(saved.cleared);
        let there = (0..sinks).chain(saved.cleared..covered);
        let count = u64::from(sinks) + u64::from(covered.saturating_sub(saved.cleared));
        let chain = &saved.chain;
        let marks = layers as usize * mark_bytes(size);
        let fits = |row: &SavedRow| {
            row.tokens.len() == size as usize
                && row.marks.as_ref().is_none_or(|of| of.len() == marks)
                && row.staged.is_sorted_by(|one, next| one < next)
                && row.staged.last().is_none_or(|&last| last < layers)
        };
        let are_there = || saved.places.len() as u64 == count && there.eq(saved.places.iter().copied());
        let known = [
            (saved.length <= COUNT_MAX, "at most 2147483647 tokens"),
            (are_there(), "the places of its tokens that are in the window"),
            (self.window.is_some() || saved.cleared == 0, "no place that left a window"),
            (saved.cleared <= covered, "places that left the window below its length"),
            (chain.known <= saved.length && chain.nameless <= saved.length, "known tokens within its length"),
            (u64::from(chain.keyed) * u64::from(size) <= chain.known.into(), "keys of known tokens"),
            (
                rows.len() == saved.places.len() && rows.iter().all(fits),
                "rows of its blocks, their staged layers ascending",
            ),
        ];
        match known.into_iter().find(|(holds, _)| !holds) {
            Some((_, expected)) => Err(Error::argument("sequence", "inconsistent", expected)),
            None => Ok(()),
        }
    }

    /// Creates a sequence from held content whose bytes were all written or staged, with one row for each place.
    /// Prompts find its blocks as far as their names can be computed again. If prefixes were forgotten since the count
    /// `since`, prompts find none of them.
    pub fn settle(
        &mut self,
        held: HeldContent,
        saved: &SavedContent,
        rows: &[SavedRow],
        of: Identity,
        since: u64,
    ) -> Result<u64> {
        let room = Reservation { marks: rows.len(), ..Reservation::default() };
        if let Err(refusal) = self.tables.reserve(room).and_then(|()| self.sequences.reserve()) {
            self.release(held);
            return Err(refusal);
        }
        for (&place, row) in saved.places.iter().zip(rows) {
            let block = self.tables.get(held.0.table(), place).expect("a block at each place");
            // A slot is written whole, wherever its tokens end.
            let kept = if self.keeps_states { self.block_size() } else { saved.kept(place, self.block_size()) };
            self.tables.pool_mut().write_saved(block, row.marks.as_deref(), kept);
            self.tables.pool_mut().set_tokens(block, 0, &row.tokens);
        }
        let table = held.0.into_table();
        let mut content = Content::saved(table, saved.length, saved.cleared, KeyChain::new(of, since));
        if self.keeps_states {
            content = content.keeping_states();
        }
        if since == self.forgotten {
            content.name_saved(&saved.chain, &mut self.tables);
        }
        content.forget_before(self.forgotten);
        self.changed();
        Ok(self.sequences.add(content))
    }
}
