//! Marks of the same slots in several layers at once.
//!
//! ```text
//! 16 slots a block     word 0 [ layer 0 | 1 | 2 | 3 ]   word 1 [ layer 4 | ... ]     slot 5 of all layers: the same bits in each word
//! ```
//!
//! Where block sizes divide a word that is O(words of a block), else what the layers cost one by one.

use std::ops::Range;

use super::{ALL, Part, WORD_BITS, WrittenMarks};

impl WrittenMarks {
    /// Whether any of these slots is marked in any layer.
    pub(in crate::paged) fn has_any_layer(&self, block: u32, slots: Range<u32>) -> bool {
        match (self.part(block), self.in_each_word(slots.clone())) {
            (Part::All, _) => !slots.is_empty(),
            (Part::Nothing, _) => false,
            (Part::Words(words), Some(bits)) => words.iter().any(|word| word & bits != 0),
            (Part::Words(_), None) => (0..self.num_layers()).any(|layer| self.has_any(block, layer, slots.clone())),
        }
    }

    /// Marks neighbouring slots in some layers; their block is reserved.
    pub(in crate::paged) fn set_layers(&mut self, block: u32, layers: Range<u32>, slots: Range<u32>) {
        let whole = layers.len() as u32 == self.num_layers() && self.blocks[block as usize] != ALL;
        let Some(bits) = self.in_each_word(slots.clone()).filter(|_| whole && !slots.is_empty()) else {
            return layers.for_each(|layer| self.set(block, layer, slots.clone()));
        };
        if slots.len() as u32 == self.block_size {
            return self.close(block, ALL);
        }
        let start = self.open(block);
        let mut full = true;
        for word in 0..self.words_per_block {
            let all = self.full_word(word);
            let marks = &mut self.parts[start + word];
            *marks |= bits & all;
            full &= *marks == all;
        }
        if full {
            self.close(block, ALL);
        }
    }

    /// The bits of these slots in all layers, where they are the same in each word.
    fn in_each_word(&self, slots: Range<u32>) -> Option<u64> {
        let size = self.block_size;
        if !(WORD_BITS as u32).is_multiple_of(size) {
            return None;
        }
        let first = (1..=WORD_BITS as u32 / size).fold(0, |first, _| first << (size % 64) | 1u64);
        let of_one = if slots.is_empty() { 0 } else { (u64::MAX >> (64 - slots.len() as u32)) << slots.start };
        Some(first.wrapping_mul(of_one))
    }

    fn num_layers(&self) -> u32 {
        (self.slots / u64::from(self.block_size)) as u32
    }
}
