//! What must hold between calls: a check that is real, and slow.

use std::collections::HashMap;

use super::chunks::Table;
use super::holding::Held;
use super::sequences::PagedPlanner;
use super::staging::Page;

impl PagedPlanner {
    /// Says what is wrong with the bookkeeping, if anything is; `held` is everything that holds blocks beside sequences.
    /// O(slots).
    pub fn check_invariants(&self, held: &[&Held]) -> Result<(), String> {
        let store = &self.store;
        store.blocks.check_invariants()?;
        store.index.check_invariants()?;
        store.marks.check()?;
        store.staging.check_invariants()?;
        let of_sequences = self.sequences.iter().flatten().map(|of| &of.content.table);
        let tables: Vec<&Table> = of_sequences.chain(held.iter().map(|held| held.table())).collect();
        let mut counts = HashMap::new();
        self.chunks.check(&tables, |block| *counts.entry(block).or_insert(0) += 1)?;
        for block in 0..store.blocks.touched() {
            let (count, found) = (store.blocks.count(block), counts.get(&block).copied().unwrap_or(0));
            if count != found {
                return Err(format!("block {block} counts {count} chunks, {found} hold it"));
            }
            if store.blocks.is_cached(block) != (count == 0 && store.index.is_indexed(block)) {
                return Err(format!("block {block} is cached and not found by a key, or found and not cached"));
            }
            if count == 0 && !store.blocks.is_cached(block) && !store.marks.is_clear(block) {
                return Err(format!("block {block} is free and marked as written"));
            }
            if store.index.key(block).is_some() && !store.is_settled(block) {
                return Err(format!("block {block} is found by its key and not full"));
            }
        }
        self.check_staging()?;
        self.check_sequences()
    }

    /// Pages that lie in floats are of low-bit blocks that somebody holds, and have rows.
    fn check_staging(&self) -> Result<(), String> {
        for Page { block, layer } in self.store.staging.pages() {
            if !self.low_bit || self.store.blocks.count(block) == 0 {
                return Err(format!("layer {layer} of block {block} is staged, and nobody holds it"));
            }
        }
        Ok(())
    }

    fn check_sequences(&self) -> Result<(), String> {
        for of in self.sequences.iter().flatten() {
            let (content, block_size) = (&of.content, self.store.block_size);
            if of.end() > content.table.len() * block_size {
                return Err(format!("sequence {} has {} tokens in {} blocks", of.id, of.end(), content.table.len()));
            }
            if content.chain.keyed * block_size > content.chain.known || content.chain.known > content.length {
                return Err(format!("sequence {} has keys for tokens that it does not know", of.id));
            }
            of.drafts.check_invariants()?;
            if of.drafts.drafted() > content.length {
                return Err(format!("sequence {} has {} tokens, its drafts more", of.id, content.length));
            }
        }
        Ok(())
    }
}
