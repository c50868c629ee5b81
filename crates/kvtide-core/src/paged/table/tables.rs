//! The tables of one planner over its pool: a block counts the chunks that hold it, whatever changes a table.
//!
//! ```text
//! table A, table B -> chunks -> blocks of the pool
//! ```
//!
//! A block may be written where it lies when one chunk holds it and one path leads there. Memory is taken in [`Tables::reserve`]
//! alone. Costs are those of `chunks.rs`.

use std::collections::HashMap;

use super::chunks::{Chunks, Table};
use super::room::Room;
use crate::error::Result;
use crate::paged::pool::{Counts, PagePool};

/// All tables of a planner, and the blocks that they hold.
#[derive(Debug)]
pub struct Tables {
    chunks: Chunks,
    pool: PagePool,
}

impl Tables {
    /// No tables yet, over a pool of which nothing is in use.
    pub fn new(pool: PagePool) -> Self {
        Tables { chunks: Chunks::default(), pool }
    }

    /// The same over the pool that this one is made into; no table is there yet.
    pub fn with_pool(self, change: impl FnOnce(PagePool) -> PagePool) -> Self {
        Tables { pool: change(self.pool), ..self }
    }

    /// The blocks.
    pub fn pool(&self) -> &PagePool {
        &self.pool
    }

    /// The same, to change what is in them.
    pub fn pool_mut(&mut self) -> &mut PagePool {
        &mut self.pool
    }

    /// Tokens of a block.
    pub fn block_size(&self) -> u32 {
        self.pool.block_size()
    }

    /// Takes the memory for so much.
    pub fn reserve(&mut self, room: Room) -> Result<()> {
        self.pool.reserve(room.blocks, room.marks, room.staged)?;
        self.chunks.reserve(room.tables, room.blocks)
    }

    /// Staging pages that there must be for so much.
    pub fn staging_pages(&self, room: Room) -> u32 {
        self.pool.staging().upcoming().take(room.staged).max().map_or(0, |last| last + 1)
    }

    /// The block at a place of a table, unless it was cleared or is outside.
    pub fn get(&self, table: &Table, place: u32) -> Option<u32> {
        self.chunks.get(table, place)
    }

    /// The entries from a place on that lie side by side; [`None`] outside. Those that were cleared are no blocks of the pool.
    pub fn leaf(&self, table: &Table, place: u32) -> Option<&[u32]> {
        self.chunks.leaf(table, place)
    }

    /// The blocks from a place on; [`None`] for those that were cleared.
    pub fn iter(&self, table: &Table, place: u32) -> impl Iterator<Item = Option<u32>> {
        self.chunks.iter(table, place)
    }

    /// Whether others hold the block at a place of a table too.
    pub fn is_shared(&self, table: &Table, place: u32, block: u32) -> bool {
        self.chunks.is_shared(table, place) || self.pool.blocks().count(block) > 1
    }

    /// Whether others see the block at a place of a table: they hold it too, or find it by its key.
    pub fn is_seen(&self, table: &Table, place: u32) -> bool {
        let named = |block| self.pool.index().key(block).is_some();
        self.get(table, place).is_some_and(|block| self.is_shared(table, place, block) || named(block))
    }

    /// Adds new blocks, which are known to be there.
    pub fn add_new(&mut self, table: &mut Table, blocks: u32) {
        for _ in 0..blocks {
            let block = self.pool.take();
            self.chunks.push(table, block, &mut self.pool);
        }
    }

    /// Adds a block that is there already, or a place without one.
    pub fn add(&mut self, table: &mut Table, block: Option<u32>) {
        match block {
            Some(block) => {
                self.pool.retain(block);
                self.chunks.push(table, block, &mut self.pool);
            }
            None => self.chunks.push_cleared(table, &mut self.pool),
        }
    }

    /// Puts blocks that were taken for them in some places of a table, which are in order.
    pub fn replace(&mut self, table: &mut Table, replaced: impl DoubleEndedIterator<Item = (u32, u32)>) {
        let (pool, mut first) = (self.pool.chain(), None);
        for (place, block) in replaced.rev() {
            self.chunks.replace(table, place, block, pool);
            first = Some(place);
        }
        if let Some(first) = first {
            self.chunks.hand_on(table, first, pool);
        }
    }

    /// Drops the blocks from `len` on.
    pub fn truncate(&mut self, table: &mut Table, len: u32) {
        self.chunks.truncate(table, len, self.pool.chain());
    }

    /// Empties the places from `from` up to `to`; the table stays as long as it was.
    pub fn clear(&mut self, table: &mut Table, from: u32, to: u32) {
        self.chunks.clear(table, from, to, self.pool.chain());
    }

    /// The same list, sharing everything.
    pub fn fork(&mut self, table: &Table) -> Table {
        self.chunks.fork(table)
    }

    /// Ends a table.
    pub fn release(&mut self, table: Table) {
        self.chunks.release(table, self.pool.chain());
    }

    /// Bytes taken, beside those that the pool does not count.
    pub fn bytes(&self) -> usize {
        self.pool.bytes() + self.chunks.bytes()
    }

    /// Says what is wrong with the bookkeeping, if anything is, where these are all tables. O(slots).
    pub fn check(&self, tables: &[&Table]) -> Result<(), String> {
        let mut counts = HashMap::new();
        self.chunks.check(tables, |block| *counts.entry(block).or_insert(0) += 1)?;
        self.pool.check(|block| counts.get(&block).copied().unwrap_or(0))
    }
}
