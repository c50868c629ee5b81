//! Random numbers as a function of a seed and a place: Philox 4x32 with 10 rounds (Salmon, Moraes, Dror, Shaw, 2011).
//!
//! ```text
//! key      seed (64 bits)
//! counter  position of the token (64 bits), use of the number (32), index among the numbers of this use (32)
//! ```
//!
//! There is no state to advance: the token at a position is drawn with the same numbers even if it was drafted before,
//! computed again after a preemption, or sampled twice. Only integers are used, so every platform gets the same
//! numbers.

/// The use of a random number. Numbers of different uses are independent of each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Drawing the token itself.
    Draw = 0,
    /// Drawing a token that a second model drafts.
    Draft = 1,
    /// Deciding if a drafted token stays, and drawing its replacement.
    Verify = 2,
}

/// The sequence of random numbers of one seed, position and use.
#[derive(Clone, Debug)]
pub(crate) struct Random {
    key: [u32; 2],
    counter: [u32; 4],
    block: [u32; 4],
    /// Number of words of the block that were returned.
    given: usize,
}

const ROUNDS: usize = 10;
const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const KEY_STEPS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

fn philox(key: [u32; 2], counter: [u32; 4]) -> [u32; 4] {
    let (mut key, mut words) = (key, counter);
    for _ in 0..ROUNDS {
        let low = u64::from(MULTIPLIERS[0]) * u64::from(words[0]);
        let high = u64::from(MULTIPLIERS[1]) * u64::from(words[2]);
        words =
            [(high >> 32) as u32 ^ words[1] ^ key[0], high as u32, (low >> 32) as u32 ^ words[3] ^ key[1], low as u32];
        key = [key[0].wrapping_add(KEY_STEPS[0]), key[1].wrapping_add(KEY_STEPS[1])];
    }
    words
}

impl Random {
    pub fn new(seed: u64, position: u64, what: Use) -> Self {
        let counter = [0, what as u32, position as u32, (position >> 32) as u32];
        Random { key: [seed as u32, (seed >> 32) as u32], counter, block: [0; 4], given: 4 }
    }

    fn word(&mut self) -> u32 {
        if self.given == self.block.len() {
            self.block = philox(self.key, self.counter);
            self.counter[0] = self.counter[0].wrapping_add(1);
            self.given = 0;
        }
        self.given += 1;
        self.block[self.given - 1]
    }

    /// A uniform integer below `end`: draws as many bits as `end` has, until the result is below it. Two tries on
    /// average.
    pub fn below(&mut self, end: u128) -> u128 {
        assert!(end > 0, "a number below zero");
        let bits = u128::BITS - (end - 1).leading_zeros();
        loop {
            let words = (0..bits.div_ceil(32)).fold(0, |found, _| found << 32 | u128::from(self.word()));
            let found = if bits == u128::BITS { words } else { words & ((1 << bits) - 1) };
            if found < end {
                return found;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Random, Use, philox};

    #[test]
    fn the_generator_is_the_published_one() {
        let zeros = [0x6627_E8D5, 0xE169_C58D, 0xBC57_AC4C, 0x9B00_DBD8];
        assert_eq!(philox([0; 2], [0; 4]), zeros);
        let ones = [0x408F_276D, 0x41C8_3B0E, 0xA20B_C7C6, 0x6D54_51FD];
        assert_eq!(philox([u32::MAX; 2], [u32::MAX; 4]), ones);
        let pi = [0xD16C_FE09, 0x94FD_CCEB, 0x5001_E420, 0x2412_6EA1];
        let counter = [0x243F_6A88, 0x85A3_08D3, 0x1319_8A2E, 0x0370_7344];
        assert_eq!(philox([0xA409_3822, 0x299F_31D0], counter), pi);
    }

    #[test]
    fn a_number_below_one_is_zero() {
        assert_eq!(Random::new(1, 2, Use::Draw).below(1), 0);
    }

    #[test]
    fn numbers_are_below_their_end_and_reach_all_of_it() {
        for end in [2u128, 3, 7, 1 << 32, (1 << 40) + 1, u128::MAX] {
            let mut random = Random::new(7, 9, Use::Verify);
            let found: Vec<u128> = (0..400).map(|_| random.below(end)).collect();
            assert!(found.iter().all(|&number| number < end));
            assert!(found.iter().any(|&number| number < end.div_ceil(2)));
            assert!(found.iter().any(|&number| number >= end / 2));
        }
    }

    #[test]
    fn another_seed_position_or_use_gives_other_numbers() {
        let first = |seed, position, what| Random::new(seed, position, what).below(u128::MAX);
        let mut found = vec![first(1, 1, Use::Draw), first(2, 1, Use::Draw), first(1, 2, Use::Draw)];
        found.extend([first(1 << 32, 1, Use::Draw), first(1, 1 << 32, Use::Draw)]);
        found.extend([first(1, 1, Use::Draft), first(1, 1, Use::Verify)]);
        let count = found.len();
        found.sort_unstable();
        found.dedup();
        assert_eq!(found.len(), count);
        assert_eq!(first(1, 1, Use::Draw), first(1, 1, Use::Draw));
    }
}
