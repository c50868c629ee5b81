//! Taking tokens back from the end of a sequence.
//!
//! ```text
//! [ block 2 ][ block 0 ][ block 5 ]     cut at 20 of 16 a block: block 5 goes, slots 4.. of block 0 are forgotten
//! ```
//!
//! Slots of a block that others hold, or that is found by its key, stay as they are: the sequence does not see behind its
//! length, and copies the block before it writes there again. O(blocks).

use super::chunks::{Chunks, Table};
use super::room::Room;
use super::sequence::Content;
use super::sequences::PagedPlanner;
use super::store::Store;
use crate::error::{Error, Result};

impl PagedPlanner {
    /// Drops the tokens from `length` on.
    pub fn truncate(&mut self, sequence: u64, length: u32) -> Result<()> {
        self.check_truncate(sequence, length)?;
        self.cut(self.slot(sequence)?, length, 0)
    }

    /// Refuses what [`PagedPlanner::truncate`] would refuse.
    pub fn check_truncate(&self, sequence: u64, length: u32) -> Result<()> {
        let of = self.idle(sequence)?;
        let before = of.content.length;
        let refused = |reason| Err(Error::CannotRollBack { requested: length.into(), seq_len: before.into(), reason });
        if length > before {
            return refused("there are not so many");
        }
        if length < before && self.is_gone(&of.content, length) {
            return refused("tokens that it sees have left the window");
        }
        Ok(())
    }

    /// Drops the tokens from `length` on, and the blocks with none before, but for those of the first `blocks` that nobody else holds
    /// or finds.
    pub(super) fn cut(&mut self, slot: u32, length: u32, blocks: u32) -> Result<()> {
        self.take_room(self.cut_room(slot, length, blocks))?;
        let block_size = self.store.block_size;
        let of = self.sequences[slot as usize].as_mut().expect("a sequence that was found");
        let Content { table, length: before, .. } = &mut of.content;
        let covered = length.div_ceil(block_size);
        let mut kept = covered.max(blocks).min(table.len());
        // With nothing before the cut in it, such a block does not stay: what it holds would be there when the sequence grows.
        let mut cut_off = covered..kept.min(before.div_ceil(block_size));
        if let Some(first) = cut_off.find(|&place| is_others(&self.chunks, &self.store, table, place)) {
            kept = first;
        }
        self.chunks.truncate(table, kept, self.store.chain());
        if *before > length {
            for place in length / block_size..kept {
                let Some(block) = self.chunks.get(table, place) else { continue };
                if !is_others(&self.chunks, &self.store, table, place) {
                    let first = length.saturating_sub(place * block_size);
                    self.store.forget_slots(block, first);
                }
            }
        }
        *before = length;
        of.epoch += 1;
        self.cut_chain(slot, length);
        self.changed();
        Ok(())
    }

    /// Memory that the bookkeeping needs for a cut, and for what leaves the window when a transaction ends.
    pub(super) fn cut_room(&self, slot: u32, length: u32, blocks: u32) -> Room {
        let block_size = self.store.block_size;
        let kept = length.div_ceil(block_size).max(blocks).min(self.at(slot).content.table.len());
        Room { tables: 2, marks: kept.saturating_sub(length / block_size) as usize, ..Room::default() }
    }

    /// Forgets what is known of the tokens from `length` on.
    pub(super) fn cut_chain(&mut self, slot: u32, length: u32) {
        let of = self.sequences[slot as usize].as_mut().expect("a sequence that was found");
        let Content { table, chain, cleared, .. } = &mut of.content;
        chain.known = chain.known.min(length);
        let keyed = length / self.store.block_size;
        if chain.keyed <= keyed {
            return;
        }
        chain.keyed = keyed;
        let Some(last) = keyed.checked_sub(1) else {
            chain.last = chain.root;
            return;
        };
        // No block before the last one that left the window can be the last that stays.
        let key = match self.chunks.get(table, last) {
            Some(block) => self.store.index.key(block).copied(),
            None => chain.passed.filter(|_| keyed == *cleared),
        };
        match key {
            Some(key) => chain.last = key,
            // It was forgotten, and took what the tokens to come would follow with it.
            None => chain.forget(),
        }
    }
}

/// Whether the block at a place of a table is held by others as well, or found by its key.
fn is_others(chunks: &Chunks, store: &Store, table: &Table, place: u32) -> bool {
    let others = |block| chunks.is_shared(table, place) || store.blocks.count(block) > 1;
    chunks.get(table, place).is_some_and(|block| others(block) || store.index.key(block).is_some())
}
