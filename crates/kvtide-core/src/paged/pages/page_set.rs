//! A set of pages: one mark for each layer of each block.
//!
//! Memory goes up to the highest block ever reserved. Every call is O(1), but for `reserve`, which is O(1) amortised in the
//! blocks it adds.

use super::written::WrittenMarks;
use crate::error::Result;

#[derive(Debug)]
pub struct PageSet {
    /// A page has one slot here.
    pages: WrittenMarks,
}

impl PageSet {
    /// An empty set of the pages of blocks below `blocks`.
    pub fn new(blocks: u32, num_layers: u32) -> Result<Self> {
        Ok(PageSet { pages: WrittenMarks::new(blocks, num_layers, 1)? })
    }

    /// Makes room for the pages of a block and of those before it.
    pub fn reserve(&mut self, block: u32) -> Result<()> {
        self.pages.reserve(block, 0)
    }

    /// Bytes taken.
    pub fn bytes(&self) -> usize {
        self.pages.bytes()
    }

    pub fn contains(&self, block: u32, layer: u32) -> bool {
        self.pages.get(block, layer, 0)
    }

    /// Adds all pages of a block, if there is room for it.
    pub fn insert_block(&mut self, block: u32) {
        self.pages.fill_block(block);
    }

    /// Takes a page out; it stays where there is no memory to say so.
    pub fn remove(&mut self, block: u32, layer: u32) {
        if self.contains(block, layer) && self.pages.reserve(block, 1).is_ok() {
            self.pages.unset(block, layer, 0..1);
        }
    }
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
}
