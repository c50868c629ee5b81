//! The marks of slots that were written since their block was handed out.
//!
//! ```text
//! block 0    block 1    block 2      block 3
//! nothing    all        mask 1       mask 0
//!
//! mask 0  [ layer 0 | layer 1 | .. ]      one bit for each slot; only blocks that are neither empty nor full have a mask
//! ```
//!
//! Invariants: a block's mask has at least one bit set, but not all; bits beyond the slots are 0; a mask belongs to one
//! block or is free. Memory is four bytes for each block up to the highest reserved, and the masks. `get` is O(1),
//! other calls O(slots / 64), or O(layers * block_size / 64) when a layer becomes full. If the block size divides a
//! word, marks of the same slots in all layers are the same bits in each word, and are changed one word at a time.

use std::ops::Range;

use crate::error::{Error, Result};

const WORD_BITS: u64 = u64::BITS as u64;

/// The state of a block: one of these two, or the number of its mask plus one.
const NOTHING: u32 = 0;
const ALL: u32 = u32::MAX;

#[derive(Debug)]
pub struct WrittenMarks {
    block_size: u32,
    slots: u64,
    words_per_block: usize,
    blocks: Vec<u32>,
    masks: Vec<u64>,
    free_masks: Vec<u32>,
}

impl WrittenMarks {
    /// Returns marks for the blocks below `blocks`, none of them set.
    pub fn new(blocks: u32, num_layers: u32, block_size: u32) -> Result<Self> {
        let slots = u64::from(num_layers) * u64::from(block_size);
        let words_per_block = usize::try_from(slots.div_ceil(WORD_BITS)).map_err(|_| out_of_memory(blocks))?;
        words_per_block.checked_mul(blocks as usize).ok_or_else(|| out_of_memory(blocks))?;
        Ok(WrittenMarks {
            block_size,
            slots,
            words_per_block,
            blocks: Vec::new(),
            masks: Vec::new(),
            free_masks: Vec::new(),
        })
    }

    /// Reserves memory for the blocks up to this one, and for changing this many blocks.
    pub fn reserve(&mut self, block: u32, changes: usize) -> Result<()> {
        let refused = |_| out_of_memory(block + 1);
        if let Some(more) = (block as usize + 1).checked_sub(self.blocks.len()) {
            self.blocks.try_reserve(more).map_err(refused)?;
            self.blocks.resize(block as usize + 1, NOTHING);
        }
        let missing = changes.saturating_sub(self.free_masks.len());
        let words = missing.checked_mul(self.words_per_block).ok_or_else(|| out_of_memory(block + 1))?;
        self.masks.try_reserve(words).map_err(refused)?;
        let all = self.masks.len() / self.words_per_block + missing;
        self.free_masks.try_reserve(all - self.free_masks.len()).map_err(refused)
    }

    /// Marks neighbouring slots of a reserved block.
    pub fn set(&mut self, block: u32, layer: u32, slots: Range<u32>) {
        if slots.is_empty() || self.blocks[block as usize] == ALL {
            return;
        }
        let full = slots.len() as u32 == self.block_size && self.slots == u64::from(self.block_size);
        if self.blocks[block as usize] == NOTHING && full {
            self.blocks[block as usize] = ALL;
            return;
        }
        let start = self.open(block);
        let page = u64::from(layer) * u64::from(self.block_size);
        let (first, end) = (page + u64::from(slots.start), page + u64::from(slots.end));
        if end.div_ceil(WORD_BITS) - first / WORD_BITS == 1 {
            // The common case: one word, which does not become full.
            let word = (first / 64) as usize;
            self.masks[start + word] |= (u64::MAX >> (64 - slots.len())) << (first % 64);
            if self.masks[start + word] != self.full_word(word) {
                return;
            }
        } else {
            for (word, bits) in self.places(layer, slots) {
                self.masks[start + word] |= bits;
            }
        }
        if self.has_all(block, layer, 0..self.block_size)
            && (0..self.words_per_block).all(|word| self.masks[start + word] == self.full_word(word))
        {
            self.close(block, ALL);
        }
    }

    /// True if any of these slots is marked in any layer.
    pub fn has_any_layer(&self, block: u32, slots: Range<u32>) -> bool {
        match (self.mask(block), self.in_each_word(slots.clone())) {
            (Marked::All, _) => !slots.is_empty(),
            (Marked::Nothing, _) => false,
            (Marked::Words(words), Some(bits)) => words.iter().any(|word| word & bits != 0),
            (Marked::Words(_), None) => (0..self.num_layers()).any(|layer| self.has_any(block, layer, slots.clone())),
        }
    }

    /// Marks neighbouring slots of a reserved block in some layers.
    pub fn set_layers(&mut self, block: u32, layers: Range<u32>, slots: Range<u32>) {
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
            let marks = &mut self.masks[start + word];
            *marks |= bits & all;
            full &= *marks == all;
        }
        if full {
            self.close(block, ALL);
        }
    }

    /// The bits of these slots in all layers, if they are the same in each word.
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

    pub fn has_all(&self, block: u32, layer: u32, slots: Range<u32>) -> bool {
        match self.mask(block) {
            Marked::All => true,
            Marked::Nothing => slots.is_empty(),
            Marked::Words(words) => self.places(layer, slots).all(|(word, bits)| words[word] & bits == bits),
        }
    }

    pub fn has_any(&self, block: u32, layer: u32, slots: Range<u32>) -> bool {
        match self.mask(block) {
            Marked::All => !slots.is_empty(),
            Marked::Nothing => false,
            Marked::Words(words) => self.places(layer, slots).any(|(word, bits)| words[word] & bits != 0),
        }
    }

    pub fn get(&self, block: u32, layer: u32, slot: u32) -> bool {
        self.has_any(block, layer, slot..slot + 1)
    }

    /// Clears the marks of neighbouring slots. Memory for one change is reserved.
    pub fn unset(&mut self, block: u32, layer: u32, slots: Range<u32>) {
        if !self.has_any(block, layer, slots.clone()) {
            return;
        }
        let start = self.open(block);
        for (word, bits) in self.places(layer, slots) {
            self.masks[start + word] &= !bits;
        }
        if self.masks[start..start + self.words_per_block].iter().all(|&marks| marks == 0) {
            self.close(block, NOTHING);
        }
    }

    pub fn clear_block(&mut self, block: u32) {
        if (block as usize) < self.blocks.len() {
            self.close(block, NOTHING);
        }
    }

    /// Sets all marks of a block, if it is reserved.
    pub fn fill_block(&mut self, block: u32) {
        if (block as usize) < self.blocks.len() {
            self.close(block, ALL);
        }
    }

    pub fn bytes(&self) -> usize {
        let numbers = self.blocks.capacity() + self.free_masks.capacity();
        numbers * size_of::<u32>() + self.masks.capacity() * size_of::<u64>()
    }

    /// Number of reserved blocks; later ones are clear.
    pub fn blocks(&self) -> u32 {
        self.blocks.len() as u32
    }

    /// True if a block has no mark in any layer.
    pub fn is_clear(&self, block: u32) -> bool {
        self.blocks.get(block as usize).is_none_or(|&mask| mask == NOTHING)
    }

    /// True if all slots of all layers are marked.
    pub fn is_whole(&self, block: u32) -> bool {
        self.blocks.get(block as usize) == Some(&ALL)
    }

    /// Returns an error of the masks, if any. O(blocks + masks).
    pub fn check(&self) -> Result<(), String> {
        let mut of = vec![0; self.masks.len() / self.words_per_block];
        let named = self.blocks.iter().filter(|&&mask| mask != NOTHING && mask != ALL).map(|&mask| mask - 1);
        named.chain(self.free_masks.iter().copied()).for_each(|mask| of[mask as usize] += 1);
        if let Some(mask) = of.iter().position(|&count| count != 1) {
            return Err(format!("mask {mask} of the marks belongs to {} blocks", of[mask]));
        }
        for block in 0..self.blocks() {
            if let Marked::Words(words) = self.mask(block) {
                let marks: u64 = words.iter().map(|word| u64::from(word.count_ones())).sum();
                if marks == 0 || marks == self.slots {
                    return Err(format!("block {block} has {marks} marks of {} in a mask", self.slots));
                }
            }
        }
        Ok(())
    }

    fn mask(&self, block: u32) -> Marked<'_> {
        match self.blocks.get(block as usize) {
            None | Some(&NOTHING) => Marked::Nothing,
            Some(&ALL) => Marked::All,
            Some(&mask) => {
                let start = (mask as usize - 1) * self.words_per_block;
                Marked::Words(&self.masks[start..start + self.words_per_block])
            }
        }
    }

    /// The first word of a block's mask. A block without a mask gets one.
    fn open(&mut self, block: u32) -> usize {
        let (before, words) = (self.blocks[block as usize], self.words_per_block);
        if before != NOTHING && before != ALL {
            return (before as usize - 1) * words;
        }
        let mask = self.free_masks.pop().map_or(self.masks.len() / words, |mask| mask as usize);
        self.masks.resize(self.masks.len().max((mask + 1) * words), 0);
        for word in 0..words {
            self.masks[mask * words + word] = if before == ALL { self.full_word(word) } else { 0 };
        }
        self.blocks[block as usize] = mask as u32 + 1;
        mask * words
    }

    /// Frees a block's mask and sets its state.
    fn close(&mut self, block: u32, said: u32) {
        let before = std::mem::replace(&mut self.blocks[block as usize], said);
        if before != NOTHING && before != ALL {
            self.free_masks.push(before - 1);
        }
    }

    /// A word of a full block's mask.
    fn full_word(&self, word: usize) -> u64 {
        u64::MAX >> (WORD_BITS - (self.slots - word as u64 * WORD_BITS).min(WORD_BITS))
    }

    /// The words of a block's mask that contain these slots, and the slots' bits in them.
    fn places(&self, layer: u32, slots: Range<u32>) -> impl Iterator<Item = (usize, u64)> + use<> {
        let page = u64::from(layer) * u64::from(self.block_size);
        let (mut bit, end) = (page + u64::from(slots.start), page + u64::from(slots.end));
        std::iter::from_fn(move || {
            let count = (end.checked_sub(bit)?).min(WORD_BITS - bit % WORD_BITS);
            if count == 0 {
                return None;
            }
            let bits = (u64::MAX >> (WORD_BITS - count)) << (bit % WORD_BITS);
            let word = (bit / WORD_BITS) as usize;
            bit += count;
            Some((word, bits))
        })
    }
}

enum Marked<'a> {
    Nothing,
    All,
    Words(&'a [u64]),
}

fn out_of_memory(blocks: u32) -> Error {
    Error::OutOfMemory { count: blocks.into(), what: "blocks" }
}

#[cfg(test)]
mod tests;
