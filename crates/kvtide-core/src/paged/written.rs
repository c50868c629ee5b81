//! Which slots were written since their block was handed out.
//!
//! ```text
//! block 0    block 1    block 2      block 3
//! nothing    all        part 1       part 0
//!
//! part 0  [ layer 0 | layer 1 | .. ]      one bit per slot; only blocks that are neither empty nor full have one
//! ```
//!
//! Invariants: a block's part has some bit and not all; bits that stand for no slot are 0; a part is of one block or free.
//! Memory is four bytes for each block up to the highest ever reserved, and the parts: a full block costs no more. `get` is
//! O(1), what looks at a run of slots or changes one is O(its slots / 64), or O(layers * block_size / 64) when a layer becomes
//! full.

use std::ops::Range;

use crate::error::{Error, Result};

const WORD_BITS: u64 = u64::BITS as u64;

/// What is said of a block: this, that, or which part it has.
const NOTHING: u32 = 0;
const ALL: u32 = u32::MAX;

#[derive(Debug)]
pub(super) struct WrittenMarks {
    block_size: u32,
    slots: u64,
    words_per_block: usize,
    /// Nothing, all, or one more than the part.
    blocks: Vec<u32>,
    parts: Vec<u64>,
    free_parts: Vec<u32>,
}

impl WrittenMarks {
    /// Marks for the blocks below `blocks`, none set.
    pub(super) fn new(blocks: u32, num_layers: u32, block_size: u32) -> Result<Self> {
        let slots = u64::from(num_layers) * u64::from(block_size);
        let words_per_block = usize::try_from(slots.div_ceil(WORD_BITS)).map_err(|_| out_of_memory(blocks))?;
        words_per_block.checked_mul(blocks as usize).ok_or_else(|| out_of_memory(blocks))?;
        Ok(WrittenMarks {
            block_size,
            slots,
            words_per_block,
            blocks: Vec::new(),
            parts: Vec::new(),
            free_parts: Vec::new(),
        })
    }

    /// Makes room for the blocks up to this one, and for changes of so many of them.
    pub(super) fn reserve(&mut self, block: u32, changes: usize) -> Result<()> {
        let refused = |_| out_of_memory(block + 1);
        if let Some(more) = (block as usize + 1).checked_sub(self.blocks.len()) {
            self.blocks.try_reserve(more).map_err(refused)?;
            self.blocks.resize(block as usize + 1, NOTHING);
        }
        let missing = changes.saturating_sub(self.free_parts.len());
        let words = missing.checked_mul(self.words_per_block).ok_or_else(|| out_of_memory(block + 1))?;
        self.parts.try_reserve(words).map_err(refused)?;
        let all = self.parts.len() / self.words_per_block + missing;
        self.free_parts.try_reserve(all - self.free_parts.len()).map_err(refused)
    }

    /// Marks neighbouring slots; their block is reserved.
    pub(super) fn set(&mut self, block: u32, layer: u32, slots: Range<u32>) {
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
            // Most often in one word, which is not full.
            let word = (first / 64) as usize;
            self.parts[start + word] |= (u64::MAX >> (64 - slots.len())) << (first % 64);
            if self.parts[start + word] != self.full_word(word) {
                return;
            }
        } else {
            for (word, bits) in self.places(layer, slots) {
                self.parts[start + word] |= bits;
            }
        }
        if self.has_all(block, layer, 0..self.block_size)
            && (0..self.words_per_block).all(|word| self.parts[start + word] == self.full_word(word))
        {
            self.close(block, ALL);
        }
    }

    /// Whether all of these slots are marked.
    pub(super) fn has_all(&self, block: u32, layer: u32, slots: Range<u32>) -> bool {
        match self.part(block) {
            Part::All => true,
            Part::Nothing => slots.is_empty(),
            Part::Words(words) => self.places(layer, slots).all(|(word, bits)| words[word] & bits == bits),
        }
    }

    /// Whether any of these slots is marked.
    pub(super) fn has_any(&self, block: u32, layer: u32, slots: Range<u32>) -> bool {
        match self.part(block) {
            Part::All => !slots.is_empty(),
            Part::Nothing => false,
            Part::Words(words) => self.places(layer, slots).any(|(word, bits)| words[word] & bits != 0),
        }
    }

    pub(super) fn get(&self, block: u32, layer: u32, slot: u32) -> bool {
        self.has_any(block, layer, slot..slot + 1)
    }

    /// Forgets the marks of neighbouring slots; room for one change is reserved.
    pub(super) fn unset(&mut self, block: u32, layer: u32, slots: Range<u32>) {
        if !self.has_any(block, layer, slots.clone()) {
            return;
        }
        let start = self.open(block);
        for (word, bits) in self.places(layer, slots) {
            self.parts[start + word] &= !bits;
        }
        if self.parts[start..start + self.words_per_block].iter().all(|&marks| marks == 0) {
            self.close(block, NOTHING);
        }
    }

    /// Forgets the marks of all layers of a block.
    pub(super) fn clear_block(&mut self, block: u32) {
        if (block as usize) < self.blocks.len() {
            self.close(block, NOTHING);
        }
    }

    /// Marks all slots of all layers of a block, if there is room for it.
    pub(super) fn fill_block(&mut self, block: u32) {
        if (block as usize) < self.blocks.len() {
            self.close(block, ALL);
        }
    }

    /// Bytes taken.
    pub(super) fn bytes(&self) -> usize {
        let numbers = self.blocks.capacity() + self.free_parts.capacity();
        numbers * size_of::<u32>() + self.parts.capacity() * size_of::<u64>()
    }

    /// Blocks that there is room for; those above are clear.
    pub(super) fn blocks(&self) -> u32 {
        self.blocks.len() as u32
    }

    /// Whether a block has no mark in any layer.
    pub(super) fn is_clear(&self, block: u32) -> bool {
        self.blocks.get(block as usize).is_none_or(|&part| part == NOTHING)
    }

    /// Whether all slots of all layers are marked.
    pub(super) fn is_whole(&self, block: u32) -> bool {
        self.blocks.get(block as usize) == Some(&ALL)
    }

    /// Says what is wrong with the parts, if anything is. O(blocks + parts).
    pub(super) fn check(&self) -> Result<(), String> {
        let mut of = vec![0; self.parts.len() / self.words_per_block];
        let named = self.blocks.iter().filter(|&&part| part != NOTHING && part != ALL).map(|&part| part - 1);
        named.chain(self.free_parts.iter().copied()).for_each(|part| of[part as usize] += 1);
        if let Some(part) = of.iter().position(|&count| count != 1) {
            return Err(format!("part {part} of the marks is of {} blocks", of[part]));
        }
        for block in 0..self.blocks() {
            if let Part::Words(words) = self.part(block) {
                let marks: u64 = words.iter().map(|word| u64::from(word.count_ones())).sum();
                if marks == 0 || marks == self.slots {
                    return Err(format!("block {block} has {marks} marks of {} in a part", self.slots));
                }
            }
        }
        Ok(())
    }

    fn part(&self, block: u32) -> Part<'_> {
        match self.blocks.get(block as usize) {
            None | Some(&NOTHING) => Part::Nothing,
            Some(&ALL) => Part::All,
            Some(&part) => {
                let start = (part as usize - 1) * self.words_per_block;
                Part::Words(&self.parts[start..start + self.words_per_block])
            }
        }
    }

    /// The first word of a block's part, which it gets if it has none.
    fn open(&mut self, block: u32) -> usize {
        let (before, words) = (self.blocks[block as usize], self.words_per_block);
        if before != NOTHING && before != ALL {
            return (before as usize - 1) * words;
        }
        let part = self.free_parts.pop().map_or(self.parts.len() / words, |part| part as usize);
        self.parts.resize(self.parts.len().max((part + 1) * words), 0);
        for word in 0..words {
            self.parts[part * words + word] = if before == ALL { self.full_word(word) } else { 0 };
        }
        self.blocks[block as usize] = part as u32 + 1;
        part * words
    }

    /// Gives a block's part back.
    fn close(&mut self, block: u32, said: u32) {
        let before = std::mem::replace(&mut self.blocks[block as usize], said);
        if before != NOTHING && before != ALL {
            self.free_parts.push(before - 1);
        }
    }

    /// A word of a block whose slots are all marked.
    fn full_word(&self, word: usize) -> u64 {
        u64::MAX >> (WORD_BITS - (self.slots - word as u64 * WORD_BITS).min(WORD_BITS))
    }

    /// The words of a block in which these slots lie, and their bits in them.
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

/// What is known of a block.
enum Part<'a> {
    Nothing,
    All,
    Words(&'a [u64]),
}

fn out_of_memory(blocks: u32) -> Error {
    Error::OutOfMemory { count: blocks.into(), what: "blocks" }
}

mod layers;
#[cfg(test)]
mod tests;
