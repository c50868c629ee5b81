//! The usefulness of blocks that prompts find one by one, such as checkpoints of a state: tokens saved × requests, with
//! ageing.
//!
//! ```text
//! score of a block when it is released = age + tokens that finding it saves * requests for it
//! age                                  = the highest score of a block that was evicted
//! ```
//!
//! The block with the lowest score is evicted first. The age is a clock of evictions, without time: while nothing is
//! evicted, nothing ages, and a block that is no longer requested is overtaken by blocks that are released after it.
//! This is the rule of GreedyDual-Size-Frequency for blocks of one size.
//!
//! Every call is O(1). 8 bytes per block, up to the highest block handed out.

use crate::error::Result;
use crate::paged::per_block::PerBlock;

/// Further requests do not make a block more useful, so a block that was requested very often does not stay forever.
const REQUESTS_MAX: u32 = 64;

#[derive(Clone, Copy, Debug)]
struct Use {
    /// Tokens that a prompt saves if it finds this block instead of the next one before it.
    tokens: u32,
    /// Number of prompts that had the tokens of this block, including the one that computed it.
    requests: u32,
}

/// A block about which nothing is known, such as one that was loaded.
const NEW: Use = Use { tokens: 512, requests: 1 };

#[derive(Debug)]
pub(super) struct Usefulness {
    uses: PerBlock<Use>,
    age: u64,
}

impl Usefulness {
    pub(super) fn new(blocks: u32) -> Self {
        Usefulness { uses: PerBlock::new(blocks, 1, NEW), age: 0 }
    }

    pub(super) fn reserve(&mut self, block: u32) -> Result<()> {
        self.uses.reserve(block)
    }

    /// Begins a new life of a block.
    pub(super) fn begin(&mut self, block: u32) {
        self.set(block, NEW);
    }

    /// Notes the tokens that a block saves, and the number of prompts that had its tokens until now.
    pub(super) fn note(&mut self, block: u32, tokens: u32, requests: u32) {
        self.set(block, Use { tokens, requests: requests.clamp(1, REQUESTS_MAX) });
    }

    /// Counts a prompt that found the block.
    pub(super) fn request(&mut self, block: u32) {
        let Use { tokens, requests } = self.get(block);
        self.set(block, Use { tokens, requests: (requests + 1).min(REQUESTS_MAX) });
    }

    /// A block that was handed out before its usefulness mattered is like a new one.
    fn get(&self, block: u32) -> Use {
        if block < self.uses.rows() { self.uses[block] } else { NEW }
    }

    fn set(&mut self, block: u32, used: Use) {
        if block < self.uses.rows() {
            self.uses[block] = used;
        }
    }

    /// The score of a block that is released now.
    pub(super) fn score(&self, block: u32) -> u64 {
        let Use { tokens, requests } = self.get(block);
        self.age.saturating_add(u64::from(tokens) * u64::from(requests))
    }

    /// Ages all blocks: one with this score was evicted.
    pub(super) fn evicted(&mut self, score: u64) {
        self.age = self.age.max(score);
    }

    pub(super) fn bytes(&self) -> usize {
        self.uses.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(blocks: u32) -> Usefulness {
        let mut useful = Usefulness::new(blocks);
        useful.reserve(blocks - 1).unwrap();
        useful
    }

    #[test]
    fn tokens_times_requests_behind_the_age() {
        let mut useful = of(2);
        assert_eq!(useful.score(0), 512);
        useful.note(0, 512, 1);
        useful.request(0);
        useful.note(1, 300, 2);
        assert_eq!([useful.score(0), useful.score(1)], [1024, 600]);
        useful.evicted(600);
        useful.evicted(40);
        assert_eq!(useful.score(0), 1624);
        useful.begin(0);
        assert_eq!(useful.score(0), 600 + 512);
    }

    #[test]
    fn neither_requests_nor_the_age_overflow() {
        let mut useful = of(1);
        useful.note(0, u32::MAX, 0);
        assert_eq!(useful.score(0), u64::from(u32::MAX));
        (0..100).for_each(|_| useful.request(0));
        assert_eq!(useful.score(0), 64 * u64::from(u32::MAX));
        useful.note(0, u32::MAX, u32::MAX);
        useful.evicted(u64::MAX - 1);
        assert_eq!(useful.score(0), u64::MAX);
    }
}
