//! Detects that prompts and workers compute different block keys. Prompts then never get a hit, and nothing else
//! reports it.
//!
//! ```text
//! a prompt has a hit, or a worker stores a block of a prompt that had none      keys agree, for good
//! 32 prompts without a hit; then workers stored 256 blocks, none of which is
//! the first or the last of those prompts; and 32 more prompts without a hit     keys differ, reported once
//! ```
//!
//! A prompt is stored after it has been computed. So prompts that are new to all workers do not count as a sign, and
//! neither does a router that has just started, or one whose workers send no events. O(blocks) stored until it is
//! decided, and nothing afterwards.

use crate::wire::Event;

/// The number of prompts whose keys are watched for, and the number of further prompts without a hit.
const PROMPTS: usize = 32;

/// The number of blocks that workers must store in the meantime.
const BLOCKS: u64 = 256;

/// Compares the keys of prompts with the keys of the blocks that workers store.
#[derive(Clone, Debug, Default)]
pub struct NameCheck {
    /// The first and the last key of each of the first prompts.
    awaited: Vec<u64>,
    prompts: usize,
    stored: u64,
    is_decided: bool,
    differ: bool,
}

impl NameCheck {
    /// True until the keys are known to agree, or a difference was detected.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !self.is_decided
    }

    /// Reports the length of a prompt's longest prefix on any worker, in blocks.
    pub fn found(&mut self, keys: &[u64], blocks: usize) {
        let (false, [first, ..], [.., last]) = (self.is_decided, keys, keys) else { return };
        if blocks > 0 {
            return self.decide(false);
        }
        if self.prompts < PROMPTS {
            self.awaited.extend([first, last]);
        }
        self.prompts += 1;
        if self.prompts >= 2 * PROMPTS && self.stored >= BLOCKS {
            self.decide(true);
        }
    }

    /// Reports an event of a worker.
    pub fn told(&mut self, event: &Event) {
        let (false, Event::Stored(stored)) = (self.is_decided, event) else { return };
        if stored.hashes.iter().any(|hash| self.awaited.contains(&hash.key())) {
            return self.decide(false);
        }
        if self.prompts >= PROMPTS {
            self.stored += stored.hashes.len() as u64;
        }
    }

    /// Returns true once if the keys differ.
    pub fn take_difference(&mut self) -> bool {
        std::mem::take(&mut self.differ)
    }

    fn decide(&mut self, differ: bool) {
        *self = NameCheck { is_decided: true, differ, ..NameCheck::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::StoredBlocks;

    fn stored(keys: std::ops::Range<u64>) -> Event {
        Event::Stored(StoredBlocks { hashes: keys.map(Into::into).collect(), ..StoredBlocks::default() })
    }

    /// Reports prompts without a hit.
    fn ask(check: &mut NameCheck, prompts: std::ops::Range<u64>) {
        prompts.for_each(|prompt| check.found(&[1, prompt * 2 + 1000, prompt * 2 + 1001], 0));
    }

    #[test]
    fn names_differ_when_workers_store_other_blocks_all_the_time() {
        let mut check = NameCheck::default();
        check.told(&stored(100_000..200_000));
        ask(&mut check, 0..32);
        check.told(&stored(5000..5255));
        ask(&mut check, 32..100);
        assert!(!check.take_difference(), "one block is missing");
        check.told(&stored(5255..5256));
        assert!(!check.take_difference());
        ask(&mut check, 100..101);
        assert!(check.take_difference());
        assert!(!check.take_difference() && !check.is_open(), "it is reported once");
        check.told(&stored(1..2));
        ask(&mut check, 0..100);
        assert!(!check.take_difference());
    }

    #[test]
    fn prompts_that_find_nothing_are_no_sign_of_it_by_themselves() {
        let mut check = NameCheck::default();
        ask(&mut check, 0..1000);
        for _ in 0..1000 {
            check.found(&[], 0);
        }
        assert!(check.is_open() && !check.take_difference(), "workers send no events");
        // The first prompt's last block. The blocks before it were stored before the router followed the worker.
        check.told(&stored(1001..1002));
        check.told(&stored(5000..9000));
        ask(&mut check, 0..1000);
        assert!(!check.is_open() && !check.take_difference());

        let mut check = NameCheck::default();
        ask(&mut check, 0..40);
        check.told(&stored(5000..9000));
        check.found(&[7], 1);
        ask(&mut check, 0..100);
        assert!(!check.is_open() && !check.take_difference(), "one was found");
    }
}
