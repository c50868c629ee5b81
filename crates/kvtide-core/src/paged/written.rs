//! Which slots were written since their block was handed out.
//!
//! ```text
//! block 0                    block 1
//! [ layer 0 | layer 1 | .. ] [ layer 0 | layer 1 | .. ]      one bit per slot
//! ```
//!
//! Invariants: a block starts on a word of its own; bits that stand for no slot are 0; the words of all blocks can be
//! counted in `usize`. Memory goes up to the highest block ever reserved, so a huge pool costs nothing until it is used. `get`
//! is O(1), what looks at a run of slots is O(its slots / 64), `clear_block` is O(layers * block_size / 64), `reserve` is O(1)
//! amortised in the words it adds.

use std::ops::Range;

use crate::error::{Error, Result};

const WORD_BITS: u64 = u64::BITS as u64;

#[derive(Debug)]
pub(super) struct WrittenMarks {
    block_size: u32,
    words_per_block: usize,
    words: Vec<u64>,
}

impl WrittenMarks {
    /// Marks for the blocks below `blocks`, none set.
    pub(super) fn new(blocks: u32, num_layers: u32, block_size: u32) -> Result<Self> {
        let words = (u64::from(num_layers) * u64::from(block_size)).div_ceil(WORD_BITS);
        let words_per_block = usize::try_from(words).map_err(|_| out_of_memory(blocks))?;
        words_per_block.checked_mul(blocks as usize).ok_or_else(|| out_of_memory(blocks))?;
        Ok(WrittenMarks { block_size, words_per_block, words: Vec::new() })
    }

    /// Makes room for the marks of a block and of those before it.
    pub(super) fn reserve(&mut self, block: u32) -> Result<()> {
        let words = self.words_per_block * (block as usize + 1);
        if let Some(more) = words.checked_sub(self.words.len()) {
            self.words.try_reserve(more).map_err(|_| out_of_memory(block + 1))?;
            self.words.resize(words, 0);
        }
        Ok(())
    }

    /// Marks neighbouring slots; their block is reserved.
    pub(super) fn set(&mut self, block: u32, layer: u32, slots: Range<u32>) {
        for (word, bits) in self.places(block, layer, slots) {
            self.words[word] |= bits;
        }
    }

    /// Whether all of these slots are marked.
    pub(super) fn has_all(&self, block: u32, layer: u32, slots: Range<u32>) -> bool {
        self.places(block, layer, slots)
            .all(|(word, bits)| self.words.get(word).is_some_and(|marks| marks & bits == bits))
    }

    /// Whether any of these slots is marked.
    pub(super) fn has_any(&self, block: u32, layer: u32, slots: Range<u32>) -> bool {
        self.places(block, layer, slots).any(|(word, bits)| self.words.get(word).is_some_and(|marks| marks & bits != 0))
    }

    pub(super) fn get(&self, block: u32, layer: u32, slot: u32) -> bool {
        let (word, bit) = self.place(block, layer, slot);
        self.words.get(word).is_some_and(|marks| marks & bit != 0)
    }

    /// Forgets one mark, if there is room for it.
    pub(super) fn unset(&mut self, block: u32, layer: u32, slot: u32) {
        let (word, bit) = self.place(block, layer, slot);
        if let Some(marks) = self.words.get_mut(word) {
            *marks &= !bit;
        }
    }

    /// Forgets the marks of all layers of a block.
    pub(super) fn clear_block(&mut self, block: u32) {
        let start = block as usize * self.words_per_block;
        if let Some(words) = self.words.get_mut(start..start + self.words_per_block) {
            words.fill(0);
        }
    }

    /// Blocks that there is room for; those above are clear.
    pub(super) fn blocks(&self) -> u32 {
        (self.words.len() / self.words_per_block) as u32
    }

    /// Whether a block has no mark in any layer.
    pub(super) fn is_clear(&self, block: u32) -> bool {
        let start = block as usize * self.words_per_block;
        self.words.iter().skip(start).take(self.words_per_block).all(|&marks| marks == 0)
    }

    fn place(&self, block: u32, layer: u32, slot: u32) -> (usize, u64) {
        let bit = u64::from(layer) * u64::from(self.block_size) + u64::from(slot);
        (block as usize * self.words_per_block + (bit / WORD_BITS) as usize, 1 << (bit % WORD_BITS))
    }

    /// The words in which these slots lie, and their bits in them.
    fn places(&self, block: u32, layer: u32, slots: Range<u32>) -> impl Iterator<Item = (usize, u64)> + use<> {
        let first = block as usize * self.words_per_block;
        let page = u64::from(layer) * u64::from(self.block_size);
        let (mut bit, end) = (page + u64::from(slots.start), page + u64::from(slots.end));
        std::iter::from_fn(move || {
            let count = (end.checked_sub(bit)?).min(WORD_BITS - bit % WORD_BITS);
            if count == 0 {
                return None;
            }
            let bits = (u64::MAX >> (WORD_BITS - count)) << (bit % WORD_BITS);
            let word = first + (bit / WORD_BITS) as usize;
            bit += count;
            Some((word, bits))
        })
    }
}

fn out_of_memory(blocks: u32) -> Error {
    Error::OutOfMemory { count: blocks.into(), what: "blocks" }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 3 layers of 30 slots: the last layer lies across two words.
    fn marks() -> WrittenMarks {
        WrittenMarks::new(1 << 31, 3, 30).unwrap()
    }

    fn all() -> impl Iterator<Item = (u32, u32, u32)> {
        (0..4).flat_map(|block| (0..3).flat_map(move |layer| (0..30).map(move |slot| (block, layer, slot))))
    }

    #[test]
    fn one_mark_is_one_slot() {
        for marked in all() {
            let mut marks = marks();
            marks.reserve(marked.0).unwrap();
            marks.set(marked.0, marked.1, marked.2..marked.2 + 1);
            for (block, layer, slot) in all() {
                assert_eq!(marks.get(block, layer, slot), (block, layer, slot) == marked);
            }
        }
    }

    #[test]
    fn a_run_of_slots_is_that_run() {
        for (start, end) in (0..=30).flat_map(|start| (start..=30).map(move |end| (start, end))) {
            let mut marks = marks();
            marks.reserve(1).unwrap();
            marks.set(1, 2, start..end);
            for (block, layer, slot) in all() {
                assert_eq!(marks.get(block, layer, slot), (block, layer) == (1, 2) && (start..end).contains(&slot));
            }
            assert!(marks.has_all(1, 2, start..end) && !marks.has_any(1, 2, end..30) && !marks.has_any(1, 2, 0..start));
            assert_eq!(marks.has_all(1, 2, 0..30), (start, end) == (0, 30));
            assert_eq!(marks.has_any(1, 2, 0..30), start < end);
            assert!(!marks.has_any(1, 1, 0..30) && !marks.has_any(3, 2, 0..30) && !marks.has_all(3, 2, 0..1));
        }
    }

    #[test]
    fn clearing_a_block_leaves_the_others() {
        let mut marks = marks();
        marks.reserve(3).unwrap();
        all().for_each(|(block, layer, slot)| marks.set(block, layer, slot..slot + 1));
        marks.clear_block(2);
        assert!(all().all(|(block, layer, slot)| marks.get(block, layer, slot) == (block != 2)));
        assert_eq!([0, 1, 2, 3].map(|block| marks.is_clear(block)), [false, false, true, false]);
    }

    #[test]
    fn a_block_that_was_never_reserved_is_clear_and_costs_nothing() {
        let mut marks = marks();
        marks.clear_block(1_000_000_000);
        assert!(marks.is_clear(1_000_000_000) && !marks.get(1_000_000_000, 0, 0));
        assert_eq!(marks.words.capacity(), 0);
        marks.reserve(1).unwrap();
        marks.reserve(0).unwrap();
        assert_eq!(marks.words.len(), 4);
    }

    #[test]
    fn more_marks_than_memory_are_refused() {
        let most = i32::MAX as u32;
        assert_eq!(WrittenMarks::new(most, most, most).unwrap_err(), out_of_memory(most));
        let mut marks = WrittenMarks::new(100, most, most).unwrap();
        assert_eq!(marks.reserve(9), Err(out_of_memory(10)));
        assert!(!marks.get(99, most - 1, most - 1) && marks.is_clear(99));
        assert_eq!(marks.blocks(), 0);
    }
}
