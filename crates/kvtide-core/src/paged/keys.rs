//! Blocks that are full and committed are found by their tokens from then on.
//!
//! Where another block with the same tokens is found already, a block has its key and waits: it is found once the other is gone.

use super::identity::Identity;
use super::prefix::Key;
use super::sequences::PagedPlanner;
use super::targets::reserve;
use crate::error::Result;

impl PagedPlanner {
    /// The names of the whole blocks of a prompt, whether they are there or not. O(tokens).
    pub fn keys(&self, tokens: &[u32], identity: &Identity) -> Result<Vec<Key>> {
        identity.keys(tokens, self.store.block_size)
    }

    /// The names of all blocks that can be found, in no order. O(blocks).
    pub fn indexed_keys(&self) -> Result<Vec<Key>> {
        let index = &self.store.index;
        let mut keys = Vec::new();
        reserve(&mut keys, index.len() as usize)?;
        let indexed = (0..self.store.blocks.touched()).filter(|&block| index.is_indexed(block));
        keys.extend(indexed.filter_map(|block| index.key(block)).copied());
        Ok(keys)
    }

    /// Gives keys to the blocks of a sequence that are full, known and committed, and gives up what left its window.
    pub(super) fn settle(&mut self, slot: u32) {
        self.add_keys(slot);
        self.clear_passed(slot);
    }

    fn add_keys(&mut self, slot: u32) {
        let block_size = self.store.block_size;
        let of = self.sequences[slot as usize].as_mut().expect("a sequence that was found");
        let (committed, content) = (of.committed(), &mut of.content);
        let whole = content.chain.known.min(committed) / block_size;
        while content.chain.keyed < whole {
            let place = content.chain.keyed;
            let Some(block) = self.chunks.get(&content.table, place) else { break };
            if !self.store.is_settled(block) {
                break;
            }
            let chain = &mut content.chain;
            let key = chain.last.child(self.store.index.tokens(block), place * block_size, &chain.extra);
            if self.store.index.key(block).is_none() {
                self.store.index.insert(block, &key, &chain.last, place * block_size, &chain.extra);
            }
            chain.last = key;
            chain.keyed += 1;
        }
    }

    /// Whether a sequence has the block of this key at a place, its tokens known, and it has no key yet: it is drafted, or not
    /// written in all layers. O(sequences), and O(tokens without a key) of those that have so many.
    pub(super) fn is_drafted(&self, key: &Key, place: u32) -> bool {
        let block_size = self.store.block_size;
        self.sequences.iter().flatten().any(|of| {
            let (table, chain) = (&of.content.table, &of.content.chain);
            let known = if of.drafts.is_branched() { chain.known.min(of.committed()) } else { chain.known };
            if place < chain.keyed || place >= known / block_size {
                return false;
            }
            let mut places = chain.keyed..place + 1;
            let named = places.try_fold(chain.last, |before, at| {
                let tokens = self.store.index.tokens(self.chunks.get(table, at)?);
                Some(before.child(tokens, at * block_size, &chain.extra))
            });
            named == Some(*key)
        })
    }
}
