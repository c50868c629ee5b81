//! What is saved of a planner, and what comes back.
//!
//! ```text
//! found_blocks, block_name     blocks that prompts find, each with its name      hold_new -> bytes -> name_new, release
//! saved_content, saved_row     what a sequence holds, and its tokens             hold_new -> bytes -> stage_saved -> settle
//! ```
//!
//! What comes back is held in new blocks first, where nobody finds it; then its bytes are written, and then it gets its name or its
//! sequence. Whoever stops before that releases what is held, and nothing is left of it. O(blocks), and the tokens in them.

use super::paged_planner::PagedPlanner;
use crate::error::{Error, Result, reserve};
use crate::paged::index::{BlockKey, BlockName, Identity};
use crate::paged::pages::Page;
use crate::paged::sequence::{Content, HeldContent, KeyChain, SavedChain};
use crate::paged::table::{Reservation, Table};

const WHAT: &str = "blocks that are saved";

/// What one group of layers holds of a sequence, without what lies in the blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedContent {
    /// Tokens.
    pub length: u32,
    /// Places before this one, apart from those of sinks, left the window.
    pub cleared: u32,
    /// The places that have a block, ascending.
    pub places: Vec<u32>,
    /// What is known of its tokens.
    pub chain: SavedChain,
}

/// What is known of a block of a sequence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SavedRow {
    /// The ids of its tokens; anything where they are not known.
    pub tokens: Vec<u32>,
    /// Which slots were written, a bit each, lowest first, each layer from a byte of its own; none where all were.
    pub marks: Option<Vec<u8>>,
    /// The layers whose pages lie in floats.
    pub staged: Vec<u32>,
}

/// Bytes of the marks of one layer.
fn mark_bytes(block_size: u32) -> usize {
    block_size.div_ceil(8) as usize
}

impl PagedPlanner {
    /// The blocks that prompts find: those that nobody holds in the order in which they make room, and then the others.
    pub fn found_blocks(&self) -> Result<Vec<u32>> {
        let pool = self.tables.pool();
        let mut found = Vec::new();
        reserve(&mut found, pool.index().len() as usize, WHAT)?;
        found.extend(pool.blocks().upcoming().filter(|taken| taken.evicted).map(|taken| taken.block));
        let held = |&block: &u32| pool.blocks().count(block) > 0 && pool.index().is_indexed(block);
        found.extend((0..pool.blocks().touched()).filter(held));
        Ok(found)
    }

    /// What a block is found by, if it is; of its parent the tag alone.
    #[must_use]
    pub fn block_name(&self, block: u32) -> Option<BlockName<'_>> {
        self.tables.pool().index().name(block)
    }

    /// How often a block lost its key. While it has one, and this number is the same, nobody writes to it.
    #[must_use]
    pub fn name_losses(&self, block: u32) -> u32 {
        self.tables.pool().losses(block)
    }

    /// Whether a block that is found follows none.
    #[must_use]
    pub fn is_first_block(&self, block: u32) -> bool {
        self.tables.pool().index().is_first(block)
    }

    /// Under which keys of no token blocks were found, the latest: a hint for explanations.
    #[must_use]
    pub fn roots(&self) -> &[BlockKey] {
        self.tables.pool().index().roots()
    }

    /// Counts a key of no token among those.
    pub fn note_root(&mut self, root: &BlockKey) {
        self.tables.pool_mut().note_root(root);
    }

    /// What is held, without what lies in its blocks. Blocks behind the last token are not part of it.
    pub fn saved_content(&self, held: &HeldContent) -> Result<SavedContent> {
        let (content, mut places) = (&held.0, Vec::new());
        reserve(&mut places, content.table().len() as usize, WHAT)?;
        let covered = content.length().div_ceil(self.block_size());
        let blocks = (0..covered).zip(self.tables.iter(content.table(), 0));
        places.extend(blocks.filter(|(_, block)| block.is_some()).map(|(place, _)| place));
        let chain = content.keys().saved()?;
        Ok(SavedContent { length: content.length(), cleared: content.cleared(), places, chain })
    }

    /// The block that is held at a place.
    #[must_use]
    pub fn held_block(&self, held: &HeldContent, place: u32) -> Option<u32> {
        self.tables.get(held.0.table(), place)
    }

    /// What is known of a block.
    #[must_use]
    pub fn saved_row(&self, block: u32) -> SavedRow {
        let (pool, size) = (self.tables.pool(), self.block_size());
        let tokens = pool.index().tokens(block).to_vec();
        if pool.is_sealed(block) {
            return SavedRow { tokens, ..SavedRow::default() };
        }
        let staged = (0..self.num_layers()).filter(|&layer| self.staged(block, layer).is_some()).collect();
        if pool.marks().is_whole(block) {
            return SavedRow { tokens, marks: None, staged };
        }
        let mut marks = vec![0; self.num_layers() as usize * mark_bytes(size)];
        for (layer, bytes) in (0..).zip(marks.chunks_exact_mut(mark_bytes(size))) {
            let written = (0..size).filter(|&slot| pool.marks().get(block, layer, slot));
            written.for_each(|slot| bytes[slot as usize / 8] |= 1 << (slot % 8));
        }
        SavedRow { tokens, marks: Some(marks), staged }
    }

    /// Holds so many places, with new blocks at those that are named, ascending. Nobody finds them, and what lies in them is unwritten.
    pub fn hold_new(&mut self, places: &[u32], length: u32) -> Result<HeldContent> {
        let ascends = places.windows(2).all(|two| two[0] < two[1]) && places.last().is_none_or(|&last| last < length);
        if !ascends {
            return Err(Error::argument(
                "places",
                places.len(),
                format!("places below {length}, each behind the last"),
            ));
        }
        self.state().check_available(places.len() as u64)?;
        // A place without a block takes as much of the table as one with a block.
        let room = Reservation { blocks: places.len(), tables: 1 + length as usize / 32, ..Reservation::default() };
        self.tables.reserve(room)?;
        let (mut table, mut next) = (Table::default(), places.iter().peekable());
        for place in 0..length {
            match next.next_if_eq(&&place) {
                Some(_) => self.tables.add_new(&mut table, 1),
                None => self.tables.add(&mut table, None),
            }
        }
        self.changed();
        let keys = KeyChain::new(Identity::default(), self.forgotten);
        Ok(HeldContent(Content::saved(table, 0, 0, keys)))
    }

    /// Gives a new block, whose bytes were all written, its name. Refused where the key is not of that name. Where the key is found
    /// already, this one is found after the other.
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

    /// Whether some block is found by a key.
    #[must_use]
    pub fn is_found(&self, key: &BlockKey) -> bool {
        self.tables.pool().index().contains(key)
    }

    /// Staging pages that there have to be for so many pages more that lie in floats.
    pub fn staging_for(&mut self, pages: usize) -> Result<u32> {
        let room = Reservation { staged: pages, ..Reservation::default() };
        self.tables.reserve(room)?;
        Ok(self.tables.staging_pages(room))
    }

    /// A page of a new block lies in floats, in the staging page that this answers; there is room for it.
    pub fn stage_saved(&mut self, block: u32, layer: u32) -> u32 {
        let pool = self.tables.pool_mut();
        let place = pool.staging().upcoming().next().expect("staging pages go on");
        pool.stage(Page { block, layer }, place);
        place
    }

    /// Refuses what cannot have been saved of a group like this one, with as many rows as places.
    pub fn check_saved(&self, saved: &SavedContent, rows: &[SavedRow]) -> Result<()> {
        let (size, layers) = (self.block_size(), self.num_layers());
        let covered = saved.length.div_ceil(size);
        let sinks = self.window.map_or(0, |window| window.sinks().div_ceil(size));
        let gap = sinks.min(saved.cleared)..saved.cleared;
        let there = (0..covered).filter(|place| !gap.contains(place));
        let chain = &saved.chain;
        let marks = layers as usize * mark_bytes(size);
        let fits = |row: &SavedRow| {
            row.tokens.len() == size as usize
                && row.marks.as_ref().is_none_or(|of| of.len() == marks)
                && row.staged.iter().all(|&layer| layer < layers)
        };
        let known = [
            (there.eq(saved.places.iter().copied()), "the places of its tokens that are in the window"),
            (self.window.is_some() || saved.cleared == 0, "no place that left a window"),
            (saved.cleared <= covered, "places that left the window below its length"),
            (chain.known <= saved.length && chain.nameless <= saved.length, "known tokens within its length"),
            (u64::from(chain.keyed) * u64::from(size) <= chain.known.into(), "keys of known tokens"),
            (rows.len() == saved.places.len() && rows.iter().all(fits), "rows of its blocks"),
        ];
        match known.into_iter().find(|(holds, _)| !holds) {
            Some((_, expected)) => Err(Error::argument("sequence", "something else", expected)),
            None => Ok(()),
        }
    }

    /// A new sequence of what is held, whose bytes were all written, or staged: with its rows, one for each place. Prompts find its
    /// blocks as far as their names can be made again.
    pub fn settle(&mut self, held: HeldContent, saved: &SavedContent, rows: &[SavedRow], of: Identity) -> Result<u64> {
        let room = Reservation { marks: rows.len(), ..Reservation::default() };
        if let Err(refusal) = self.tables.reserve(room).and_then(|()| self.sequences.reserve()) {
            self.release(held);
            return Err(refusal);
        }
        for (&place, row) in saved.places.iter().zip(rows) {
            let block = self.tables.get(held.0.table(), place).expect("a block at each place");
            self.tables.pool_mut().write_saved(block, row.marks.as_deref());
            self.tables.pool_mut().set_tokens(block, 0, &row.tokens);
        }
        let table = held.0.into_table();
        let mut content = Content::saved(table, saved.length, saved.cleared, KeyChain::new(of, self.forgotten));
        content.name_saved(&saved.chain, &mut self.tables);
        self.changed();
        Ok(self.sequences.add(content))
    }
}
