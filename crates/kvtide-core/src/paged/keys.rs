//! Blocks that are full and committed are found by their tokens from then on.

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
            chain.last = key;
            chain.keyed += 1;
        }
    }
}
