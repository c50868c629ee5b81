//! A set of pages: one bit for each layer of each block.
//!
//! Memory goes up to the highest block ever reserved. Every call is O(1), but for `insert_block`, which is O(layers / 64), and
//! `reserve`, which is O(1) amortised in the words it adds.

use crate::error::{Error, Result};

#[derive(Debug)]
pub(super) struct PageSet {
    words_per_block: usize,
    words: Vec<u64>,
}

impl PageSet {
    /// An empty set of the pages of blocks below `blocks`.
    pub(super) fn new(blocks: u32, num_layers: u32) -> Result<Self> {
        let words_per_block = num_layers.div_ceil(u64::BITS) as usize;
        words_per_block.checked_mul(blocks as usize).ok_or_else(|| out_of_memory(blocks))?;
        Ok(PageSet { words_per_block, words: Vec::new() })
    }

    /// Makes room for the pages of a block and of those before it.
    pub(super) fn reserve(&mut self, block: u32) -> Result<()> {
        let words = self.words_per_block * (block as usize + 1);
        if let Some(more) = words.checked_sub(self.words.len()) {
            self.words.try_reserve(more).map_err(|_| out_of_memory(block + 1))?;
            self.words.resize(words, 0);
        }
        Ok(())
    }

    pub(super) fn contains(&self, block: u32, layer: u32) -> bool {
        let (word, bit) = self.place(block, layer);
        self.words.get(word).is_some_and(|pages| pages & bit != 0)
    }

    /// Adds all pages of a block, if there is room for it.
    pub(super) fn insert_block(&mut self, block: u32) {
        let start = block as usize * self.words_per_block;
        if let Some(words) = self.words.get_mut(start..start + self.words_per_block) {
            words.fill(u64::MAX);
        }
    }

    pub(super) fn remove(&mut self, block: u32, layer: u32) {
        let (word, bit) = self.place(block, layer);
        if let Some(pages) = self.words.get_mut(word) {
            *pages &= !bit;
        }
    }

    fn place(&self, block: u32, layer: u32) -> (usize, u64) {
        (block as usize * self.words_per_block + (layer / u64::BITS) as usize, 1 << (layer % u64::BITS))
    }
}

fn out_of_memory(blocks: u32) -> Error {
    Error::OutOfMemory { count: blocks.into(), what: "blocks" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_one_bit() {
        let mut set = PageSet::new(9, 70).unwrap();
        set.insert_block(3);
        assert!(!set.contains(3, 0), "there is no room for it");
        set.reserve(4).unwrap();
        set.insert_block(3);
        set.remove(3, 65);
        set.remove(8, 0);
        for (block, layer) in (0..9).flat_map(|block| (0..70).map(move |layer| (block, layer))) {
            assert_eq!(set.contains(block, layer), block == 3 && layer != 65, "{block} {layer}");
        }
    }

    #[test]
    fn more_pages_than_memory_are_refused() {
        let most = i32::MAX as u32;
        let mut set = PageSet::new(most, most).unwrap();
        assert_eq!(set.reserve(most - 1), Err(out_of_memory(most)));
        assert!(!set.contains(most - 1, most - 1));
    }
}
