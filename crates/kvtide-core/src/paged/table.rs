//! The block tables of one planner over its pool: lists of blocks as persistent trees, which share common parts, in
//! chunks of 64 entries.
//!
//! ```text
//! table A, 70 blocks        root [ * * . . ]            table B = a fork of A: the same root, with two holders
//!                                  | |
//!                 [ 7 3 9 ... 64 ]  [ 5 8 . . ]         its first change copies the path that it changes
//! ```
//!
//! A chunk counts the tables and chunks that hold it. A block counts the chunks that hold it; the pool learns of
//! changes through [`HoldCounter`]. So a block may be written in place if nothing on its path has two holders. When a
//! table releases some blocks and keeps others before them, [`HoldCounter::hand_on`] is called for the kept ones, if
//! the counter needs it.
//!
//! Invariants: entries behind a table's length are empty; a chunk without holders is free. A fork is O(1), a look-up
//! O(height), at most 6, a walk O(entries); a change copies at most 64 entries per level. Only `reserve` allocates
//! memory, so a change cannot fail half-way.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::ops::Range;

use crate::error::{Error, Result};
use crate::paged::pool::{HoldCounter, PagePool};

pub const CHUNK: usize = 64;

const NONE: u32 = u32::MAX;

/// A leaf whose blocks were all cleared.
static CLEARED: [u32; CHUNK] = [NONE; CHUNK];

/// Levels of the highest tree: 64^6 is more than the largest number of blocks.
const LEVELS_MAX: usize = 6;

/// The blocks of a sequence, a snapshot or a match, in order. A table must be passed to [`Tables::release`] in the end.
#[derive(Debug)]
#[must_use = "its blocks stay counted until it is released"]
pub struct Table {
    root: u32,
    /// Levels below the root.
    height: u32,
    len: u32,
}

impl Default for Table {
    fn default() -> Self {
        Table { root: NONE, height: 0, len: 0 }
    }
}

impl Table {
    /// Number of places, including cleared ones.
    pub fn len(&self) -> u32 {
        self.len
    }
}

#[derive(Clone, Debug)]
struct TableChunk {
    holders: u32,
    entries: [u32; CHUNK],
}

/// The most memory that a call's bookkeeping needs. It is reserved before the call changes anything, so a plan is
/// carried out completely or not at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reservation {
    /// Blocks that the call hands out.
    pub blocks: usize,
    /// Blocks whose marks the call changes.
    pub marks: usize,
    /// Changes of tables.
    pub tables: usize,
    /// Staging pages that the call takes.
    pub staged: usize,
}

impl std::ops::Add for Reservation {
    type Output = Reservation;

    fn add(self, other: Reservation) -> Reservation {
        Reservation {
            blocks: self.blocks + other.blocks,
            marks: self.marks + other.marks,
            tables: self.tables + other.tables,
            staged: self.staged + other.staged,
        }
    }
}

/// All tables of a planner, and the counter of the blocks that they hold.
#[derive(Debug, Default)]
pub struct Tables<C = PagePool> {
    chunks: Vec<TableChunk>,
    free: Vec<u32>,
    counts: C,
}

impl<C: HoldCounter> Tables<C> {
    /// Returns no tables, over a pool without blocks in use.
    pub fn new(counts: C) -> Self {
        Tables { chunks: Vec::new(), free: Vec::new(), counts }
    }

    /// Reserves memory for this many changes, each of which may add up to `blocks` blocks.
    fn reserve_chunks(&mut self, changes: usize, blocks: usize) -> Result<()> {
        let wanted = changes * (2 * LEVELS_MAX + 2) + 2 * blocks.div_ceil(CHUNK);
        let missing = wanted.saturating_sub(self.free.len());
        let count = self.chunks.len() as u64 + missing as u64;
        let refused = |_| Error::OutOfMemory { count, what: "chunks of block tables" };
        self.chunks.try_reserve(missing).map_err(refused)?;
        // All of them may become free.
        let all = self.chunks.len() + missing;
        self.free.try_reserve(all - self.free.len()).map_err(refused)
    }

    /// The block at a place; [`None`] if the place was cleared or is outside the table.
    pub fn get(&self, table: &Table, place: u32) -> Option<u32> {
        self.leaf(table, place)?.first().copied().filter(|&block| block != NONE)
    }

    /// The entries from a place up to the end of its chunk or of the table, including cleared ones; [`None`] outside
    /// the table.
    pub fn leaf(&self, table: &Table, place: u32) -> Option<&[u32]> {
        if place >= table.len {
            return None;
        }
        let mut chunk = table.root;
        for level in (1..=table.height).rev() {
            // If an entry has no chunk, all places below it were cleared.
            let Some(above) = self.chunks.get(chunk as usize) else { break };
            chunk = above.entries[slot(place, level)];
        }
        let first = slot(place, 0);
        let count = (table.len - place).min((CHUNK - first) as u32) as usize;
        Some(self.chunks.get(chunk as usize).map_or(&CLEARED[..count], |chunk| &chunk.entries[first..first + count]))
    }

    /// The blocks from a place on; [`None`] for cleared places.
    pub fn iter(&self, table: &Table, place: u32) -> impl Iterator<Item = Option<u32>> {
        let mut place = place;
        std::iter::from_fn(move || {
            let leaf = self.leaf(table, place)?;
            place += leaf.len() as u32;
            Some(leaf)
        })
        .flatten()
        .map(|&block| (block != NONE).then_some(block))
    }

    /// True if another table leads to this place through the same chunk.
    pub fn is_shared(&self, table: &Table, place: u32) -> bool {
        let mut chunk = table.root;
        for level in (0..=table.height).rev() {
            let Some(at) = self.chunks.get(chunk as usize) else { return false };
            if at.holders > 1 {
                return true;
            }
            chunk = at.entries[slot(place, level)];
        }
        false
    }

    /// Hands on ranks: tells the blocks before the place `end`, below a chunk whose first place is `first`, that blocks
    /// behind them were released, last ones first. O(blocks), or O(1) if the counter does not hand anything on.
    fn hand_on(&mut self, index: u32, height: u32, first: u32, end: u32) {
        if index == NONE || !self.counts.hands_on() {
            return;
        }
        let entries = self.chunks[index as usize].entries;
        for (at, &entry) in entries.iter().enumerate().rev().filter(|(_, entry)| **entry != NONE) {
            let start = first + span(at, height);
            match height {
                _ if start >= end => {}
                0 => self.counts.hand_on(entry),
                _ => self.hand_on(entry, height - 1, start, end),
            }
        }
    }

    /// Chunks in use.
    #[cfg(test)]
    pub fn in_use(&self) -> usize {
        self.chunks.len() - self.free.len()
    }

    /// Counts each block once for each chunk that holds it, and reports errors in the chunks.
    fn check_chunks(&self, tables: &[&Table], mut note: impl FnMut(u32)) -> Result<(), String> {
        let mut holders = vec![0; self.chunks.len()];
        let mut open: Vec<(u32, u32)> =
            tables.iter().filter(|table| table.root != NONE).map(|table| (table.root, table.height)).collect();
        while let Some((index, height)) = open.pop() {
            let chunk = self.chunks.get(index as usize).ok_or_else(|| format!("chunk {index} is not there"))?;
            holders[index as usize] += 1;
            if holders[index as usize] > 1 {
                continue;
            }
            for &entry in chunk.entries.iter().filter(|&&entry| entry != NONE) {
                if height == 0 { note(entry) } else { open.push((entry, height - 1)) }
            }
        }
        for &index in &self.free {
            holders[index as usize] += self.chunks[index as usize].holders + 1;
            if holders[index as usize] != 1 {
                return Err(format!("chunk {index} is free and held"));
            }
            holders[index as usize] = 0;
        }
        match holders.iter().zip(&self.chunks).position(|(&found, chunk)| found != chunk.holders) {
            Some(index) => {
                Err(format!("chunk {index} counts {} holders, has {}", self.chunks[index].holders, holders[index]))
            }
            None => Ok(()),
        }
    }

    /// Returns a copy that shares all chunks.
    pub fn fork(&mut self, table: &Table) -> Table {
        if table.root != NONE {
            self.chunks[table.root as usize].holders += 1;
        }
        Table { ..*table }
    }

    pub fn release(&mut self, table: Table) {
        self.counts.begin();
        self.release_chunk(table.root, table.height, 0);
    }

    /// Adds a block whose reference count already includes this chunk.
    fn push(&mut self, table: &mut Table, block: u32) {
        self.lengthen(table, 1);
        let leaf = self.own(table, table.len - 1);
        self.chunks[leaf as usize].entries[slot(table.len - 1, 0)] = block;
    }

    /// Adds places without a block. O(height), even for many places: no chunk is made for them.
    pub fn lengthen(&mut self, table: &mut Table, places: u32) {
        table.len += places;
        while u64::from(table.len) > (CHUNK as u64) << (6 * table.height) {
            if table.root != NONE {
                let root = self.new_chunk();
                self.chunks[root as usize].entries[0] = table.root;
                table.root = root;
            }
            table.height += 1;
        }
    }

    /// Replaces the blocks of some places, which are in order. The reference counts of the new blocks already include
    /// these chunks.
    pub fn replace(&mut self, table: &mut Table, replaced: impl DoubleEndedIterator<Item = (u32, u32)>) {
        self.counts.begin();
        let mut first = 0;
        for (place, block) in replaced.rev() {
            let leaf = self.own(table, place);
            let before = std::mem::replace(&mut self.chunks[leaf as usize].entries[slot(place, 0)], block);
            if before != NONE {
                self.counts.release(before, place);
            }
            first = place;
        }
        self.hand_on(table.root, table.height, 0, first);
    }

    pub fn truncate(&mut self, table: &mut Table, len: u32) {
        if len >= table.len {
            return;
        }
        if len == 0 {
            return self.release(std::mem::take(table));
        }
        self.counts.begin();
        table.root = self.cut(table.root, table.height, len - 1);
        table.len = len;
        self.hand_on(table.root, table.height, 0, len);
    }

    /// Clears the places from `from` up to `to`; the table keeps its length.
    pub fn clear(&mut self, table: &mut Table, from: u32, to: u32) {
        let to = to.min(table.len);
        if from < to {
            self.counts.begin();
            table.root = self.empty(table.root, table.height, 0, from..to);
            self.hand_on(table.root, table.height, 0, from);
        }
    }

    /// Clears some places below a chunk whose first place is `first`, last ones first, and returns the chunk to put in
    /// its place. Chunks without other entries are released as a whole, so at most two of each level are copied.
    fn empty(&mut self, index: u32, height: u32, first: u32, places: Range<u32>) -> u32 {
        if index == NONE {
            return NONE;
        }
        let own = self.own_chunk(index, height);
        let before = |at: usize| u64::from(first) + ((at as u64) << (6 * height));
        for at in (0..CHUNK).rev() {
            let (start, end) = (before(at), before(at + 1));
            let entry = self.chunks[own as usize].entries[at];
            if entry == NONE || end <= places.start.into() || start >= places.end.into() {
                continue;
            }
            let whole = start >= places.start.into() && end <= places.end.into();
            self.chunks[own as usize].entries[at] = match whole {
                true => NONE,
                false => self.empty(entry, height - 1, start as u32, places.clone()),
            };
            if whole {
                self.release_entry(entry, height, start as u32);
            }
        }
        own
    }

    fn new_chunk(&mut self) -> u32 {
        let chunk = TableChunk { holders: 1, entries: [NONE; CHUNK] };
        match self.free.pop() {
            Some(index) => {
                self.chunks[index as usize] = chunk;
                index
            }
            None => {
                self.chunks.push(chunk);
                self.chunks.len() as u32 - 1
            }
        }
    }

    /// Returns the chunk itself if it has one holder, else a copy for this holder.
    fn own_chunk(&mut self, index: u32, height: u32) -> u32 {
        if index == NONE {
            return self.new_chunk();
        }
        if self.chunks[index as usize].holders == 1 {
            return index;
        }
        self.chunks[index as usize].holders -= 1;
        let entries = self.chunks[index as usize].entries;
        for &entry in entries.iter().filter(|&&entry| entry != NONE) {
            if height == 0 { self.counts.retain(entry) } else { self.chunks[entry as usize].holders += 1 }
        }
        let copy = self.new_chunk();
        self.chunks[copy as usize].entries = entries;
        copy
    }

    /// Makes the path to a place the table's own, and returns the chunk with its entry.
    fn own(&mut self, table: &mut Table, place: u32) -> u32 {
        table.root = self.own_chunk(table.root, table.height);
        let mut chunk = table.root;
        for level in (1..=table.height).rev() {
            let below = self.chunks[chunk as usize].entries[slot(place, level)];
            let own = self.own_chunk(below, level - 1);
            self.chunks[chunk as usize].entries[slot(place, level)] = own;
            chunk = own;
        }
        chunk
    }

    /// Drops the entries behind the place `last` below a chunk, and returns the chunk to put in its place.
    fn cut(&mut self, index: u32, height: u32, last: u32) -> u32 {
        if index == NONE {
            return NONE;
        }
        let own = self.own_chunk(index, height);
        let (kept, first) = (slot(last, height), start(last, height));
        for at in (kept + 1..CHUNK).rev() {
            let entry = std::mem::replace(&mut self.chunks[own as usize].entries[at], NONE);
            self.release_entry(entry, height, first + span(at, height));
        }
        if height > 0 {
            let below = self.chunks[own as usize].entries[kept];
            let cut = self.cut(below, height - 1, last);
            self.chunks[own as usize].entries[kept] = cut;
        }
        own
    }

    fn release_entry(&mut self, entry: u32, height: u32, first: u32) {
        match height {
            _ if entry == NONE => {}
            0 => self.counts.release(entry, first),
            _ => self.release_chunk(entry, height - 1, first),
        }
    }

    /// Removes one holder of a chunk whose first place is `first`.
    fn release_chunk(&mut self, index: u32, height: u32, first: u32) {
        if index == NONE {
            return;
        }
        self.chunks[index as usize].holders -= 1;
        if self.chunks[index as usize].holders > 0 {
            return self.hand_on(index, height, first, u32::MAX);
        }
        let entries = self.chunks[index as usize].entries;
        for (at, &entry) in entries.iter().enumerate().rev().filter(|(_, entry)| **entry != NONE) {
            self.release_entry(entry, height, first + span(at, height));
        }
        self.free.push(index);
    }
}

impl Tables {
    /// Replaces the pool; there are no tables yet.
    pub fn with_pool(self, change: impl FnOnce(PagePool) -> PagePool) -> Self {
        Tables { counts: change(self.counts), ..self }
    }

    pub fn pool(&self) -> &PagePool {
        &self.counts
    }

    pub fn pool_mut(&mut self) -> &mut PagePool {
        &mut self.counts
    }

    pub fn block_size(&self) -> u32 {
        self.counts.block_size()
    }

    pub fn reserve(&mut self, room: Reservation) -> Result<()> {
        self.counts.reserve(room.blocks, room.marks, room.staged)?;
        self.reserve_chunks(room.tables, room.blocks)
    }

    /// Number of staging pages that must exist for a reservation.
    pub fn staging_pages(&self, room: Reservation) -> u32 {
        self.counts.staging().upcoming().take(room.staged).max().map_or(0, |last| last + 1)
    }

    pub fn is_held_twice(&self, table: &Table, place: u32, block: u32) -> bool {
        self.is_shared(table, place) || self.counts.blocks().count(block) > 1
    }

    /// True if others see the block at a place: they hold it too, or it has a key.
    pub fn is_seen(&self, table: &Table, place: u32) -> bool {
        let named = |block| self.counts.index().key(block).is_some();
        self.get(table, place).is_some_and(|block| self.is_held_twice(table, place, block) || named(block))
    }

    /// Adds new blocks, which must be available.
    pub fn add_new(&mut self, table: &mut Table, blocks: u32) {
        for _ in 0..blocks {
            let block = self.counts.take();
            self.push(table, block);
        }
    }

    /// Adds a block that is in use, or a place without a block.
    pub fn add(&mut self, table: &mut Table, block: Option<u32>) {
        if let Some(block) = block {
            self.counts.retain(block);
        }
        self.push(table, block.unwrap_or(NONE));
    }

    /// Bytes in use, without those that the pool does not count.
    pub fn bytes(&self) -> usize {
        self.counts.bytes() + self.chunks.capacity() * size_of::<TableChunk>() + self.free.capacity() * size_of::<u32>()
    }

    /// Returns an error of the bookkeeping, if any. `tables` must be all tables. O(slots).
    pub fn check(&self, tables: &[&Table]) -> Result<(), String> {
        let mut found = HashMap::new();
        self.check_chunks(tables, |block| *found.entry(block).or_insert(0) += 1)?;
        self.counts.check(|block| found.get(&block).copied().unwrap_or(0))
    }
}

/// The index of a place's entry in its chunk of a level; leaves are level 0.
fn slot(place: u32, level: u32) -> usize {
    (u64::from(place) >> (6 * level)) as usize % CHUNK
}

/// The first place of the chunk of a level that contains this place.
fn start(place: u32, level: u32) -> u32 {
    let bits = 6 * (level + 1);
    if bits >= u32::BITS { 0 } else { place >> bits << bits }
}

/// Number of places before entry `at` of a chunk of a level.
fn span(at: usize, level: u32) -> u32 {
    (at as u32) << (6 * level)
}
