//! Blocks that are full and committed are found by their tokens from then on.
//!
//! Where another block with the same tokens is found already, a block has its key and waits: when its sequence ends and the other
//! one is gone, it is found in its place.

use super::sequences::PagedPlanner;

impl PagedPlanner {
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
            chain.apart += u32::from(!self.store.index.is_indexed(block));
            chain.last = key;
            chain.keyed += 1;
        }
    }

    /// Lets the blocks of a sequence that ends be found which were not, because others with the same tokens were: where those are
    /// gone by now. O(its blocks) if there may be some, else O(1).
    pub(super) fn index_apart(&mut self, slot: u32) {
        let content = &self.at(slot).content;
        if content.chain.apart == 0 {
            return;
        }
        let (chain, mut parent) = (content.chain.clone(), Some(content.chain.root));
        for place in 0..chain.keyed {
            let Some(block) = self.chunks.get(&self.at(slot).content.table, place) else {
                parent = None;
                continue;
            };
            let key = self.store.index.key(block).copied();
            if let (Some(key), Some(parent)) = (key, parent)
                && !self.store.index.is_indexed(block)
            {
                self.store.index.insert(block, &key, &parent, place * self.store.block_size, &chain.extra);
            }
            parent = key;
        }
    }
}
