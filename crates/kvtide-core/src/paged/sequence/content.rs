//! Blocks and tokens: of a sequence, of a snapshot, of a prefix that was found.
//!
//! ```text
//! tokens   [ sinks ) ......... [ committed - window .. committed )
//! blocks   [ kept  ][ cleared  ][ kept ...
//! ```
//!
//! Blocks go when they left the window of the last committed token, and so of every token to come: whoever attends for the last token
//! after an append finds its window whole, and so does a draft that is taken back.

use std::ops::Range;

use super::key_chain::KeyChain;
use crate::paged::index::BlockKey;
use crate::paged::table::{Table, Tables};
use crate::paged::window::Window;

/// A table, and which tokens are in it.
#[derive(Debug)]
pub struct Content {
    table: Table,
    /// Tokens in it, those of open drafts included.
    length: u32,
    keys: KeyChain,
    /// Blocks before this place, but for sinks, left the window.
    cleared: u32,
}

impl Content {
    /// No tokens yet.
    pub fn new(keys: KeyChain) -> Self {
        Content { table: Table::default(), length: 0, keys, cleared: 0 }
    }

    /// A prefix that was found: its blocks, and the keys of the last whole one and of the last that left the window. There is room.
    pub fn found(
        blocks: &[Option<u32>],
        length: u32,
        keys: [Option<BlockKey>; 2],
        of: KeyChain,
        tables: &mut Tables,
    ) -> Self {
        let mut table = Table::default();
        blocks.iter().for_each(|&block| tables.add(&mut table, block));
        let keys = of.found(length, length / tables.block_size(), keys[0], keys[1]);
        let cleared = blocks.iter().rposition(Option::is_none).map_or(0, |place| place as u32 + 1);
        Content { table, length, keys, cleared }
    }

    /// The same blocks and tokens, sharing everything.
    pub fn fork(&self, tables: &mut Tables) -> Self {
        Content { table: tables.fork(&self.table), keys: self.keys.clone(), ..*self }
    }

    /// Gives its blocks up.
    pub fn release(self, tables: &mut Tables) {
        tables.release(self.table);
    }

    pub fn table(&self) -> &Table {
        &self.table
    }

    pub fn length(&self) -> u32 {
        self.length
    }

    pub fn cleared(&self) -> u32 {
        self.cleared
    }

    pub fn keys(&self) -> &KeyChain {
        &self.keys
    }

    /// The same, to change what is known of its tokens.
    pub fn keys_mut(&mut self) -> &mut KeyChain {
        &mut self.keys
    }

    pub(super) fn set_length(&mut self, length: u32) {
        self.length = length;
    }

    /// Adds blocks that are known to be there, with room for them.
    pub(super) fn add_blocks(&mut self, blocks: u32, tables: &mut Tables) {
        tables.add_new(&mut self.table, blocks);
    }

    /// Drops the blocks from a place on.
    pub(super) fn drop_blocks(&mut self, place: u32, tables: &mut Tables) {
        tables.truncate(&mut self.table, place);
    }

    /// Puts copies that were taken for it in some places, which are in order.
    pub(super) fn replace(&mut self, copies: impl DoubleEndedIterator<Item = (u32, u32)>, tables: &mut Tables) {
        tables.replace(&mut self.table, copies);
    }

    /// Drops the tokens from `length` on, and the blocks with none before, but for those of the first `blocks` that nobody else sees.
    /// Slots of a block that others see stay as they are: it does not see behind its length, and copies the block before it writes
    /// there again.
    pub(super) fn cut(&mut self, length: u32, blocks: u32, tables: &mut Tables) {
        let size = tables.block_size();
        let covered = length.div_ceil(size);
        let mut kept = covered.max(blocks).min(self.table.len());
        // With nothing before the cut in it, such a block does not stay: what it holds would be there when the sequence grows.
        let mut cut_off = covered..kept.min(self.length.div_ceil(size));
        if let Some(first) = cut_off.find(|&place| tables.is_seen(&self.table, place)) {
            kept = first;
        }
        tables.truncate(&mut self.table, kept);
        if self.length > length {
            for place in length / size..kept {
                if let Some(block) = tables.get(&self.table, place)
                    && !tables.is_seen(&self.table, place)
                {
                    tables.pool_mut().cut(block, length.saturating_sub(place * size));
                }
            }
        }
        self.length = length;
        self.cut_keys(length, tables);
    }

    /// Forgets what is known of the tokens from `length` on.
    pub(super) fn cut_keys(&mut self, length: u32, tables: &Tables) {
        let Content { table, keys, cleared, .. } = self;
        keys.cut(length, length / tables.block_size(), |last, passed| match tables.get(table, last) {
            Some(block) => tables.pool().index().key(block).copied(),
            // No block before the last one that left the window can be the last that stays.
            None => passed.filter(|_| last + 1 == *cleared),
        });
    }

    /// Gives keys to the blocks that are full and known, up to the first `committed` tokens. Where another block with the same tokens
    /// is found already, a block has its key and waits: it is found once the other is gone.
    pub(super) fn name_blocks(&mut self, committed: u32, tables: &mut Tables) {
        let whole = self.keys.known().min(committed) / tables.block_size();
        while self.keys.keyed() < whole {
            match tables.get(&self.table, self.keys.keyed()).filter(|&block| tables.pool().is_sealed(block)) {
                Some(block) => self.keys.name_next(block, tables.pool_mut()),
                None => break,
            }
        }
    }

    /// Gives up the blocks that left the window of the last of so many tokens; there is room for the change.
    pub(super) fn clear_passed(&mut self, committed: u32, window: Window, tables: &mut Tables) {
        let size = tables.block_size();
        let end = window.first_seen(committed.saturating_sub(1)) / size;
        let from = self.cleared.max(window.sinks().div_ceil(size));
        if end > from {
            let last = tables.get(&self.table, end - 1).filter(|_| end <= self.keys.keyed());
            self.keys.pass(last.and_then(|block| tables.pool().index().key(block)).copied());
            tables.clear(&mut self.table, from, end);
            self.cleared = end;
        }
    }

    /// Whether a token at `position` would see some that are gone.
    pub fn is_gone(&self, position: u32, window: Window, size: u32) -> bool {
        (window.first_seen(position) / size).max(window.sinks().div_ceil(size)) < self.cleared
    }

    /// The positions that left the window.
    pub fn gap(&self, window: Option<Window>, size: u32) -> Range<u32> {
        let sinks = window.map_or(0, |window| window.sinks().div_ceil(size));
        sinks.min(self.cleared) * size..self.cleared * size
    }
}
