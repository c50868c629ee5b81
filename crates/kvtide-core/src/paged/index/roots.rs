//! The starts of prefixes: the latest roots, and the blocks that are the first of their prompts.

use super::key::BlockKey;

/// The latest 64 roots under which prefixes were indexed, without duplicates: one for each salt. With them an
/// explanation can compute the keys of a prompt under the salts of others.
#[derive(Debug, Default)]
pub(super) struct Roots {
    kept: Vec<BlockKey>,
    /// The index of the oldest root, once all places are used.
    oldest: usize,
}

impl Roots {
    const KEPT_MAX: usize = 64;

    /// Adds a root. It is a hint: without memory, the root is not kept.
    pub(super) fn note(&mut self, root: &BlockKey) {
        if self.kept.contains(root) {
            return;
        }
        if self.kept.len() < Roots::KEPT_MAX {
            if self.kept.try_reserve(1).is_ok() {
                self.kept.push(*root);
            }
            return;
        }
        self.kept[self.oldest] = *root;
        self.oldest = (self.oldest + 1) % Roots::KEPT_MAX;
    }

    /// All roots but this one.
    pub(super) fn others(&self, root: &BlockKey) -> impl Iterator<Item = &BlockKey> {
        self.kept.iter().filter(move |kept| *kept != root)
    }

    pub(super) fn kept(&self) -> &[BlockKey] {
        &self.kept
    }

    pub(super) fn bytes(&self) -> usize {
        self.kept.capacity() * size_of::<BlockKey>()
    }
}

/// The indexed blocks that are the first of their prompts, one bit each. Without memory, a block is not recorded.
#[derive(Debug, Default)]
pub(super) struct Firsts {
    words: Vec<u64>,
}

impl Firsts {
    pub(super) fn contains(&self, block: u32) -> bool {
        self.words.get(block as usize / 64).is_some_and(|bits| bits >> (block % 64) & 1 == 1)
    }

    pub(super) fn note(&mut self, block: u32) {
        let words = block as usize / 64 + 1;
        if self.words.try_reserve(words.saturating_sub(self.words.len())).is_ok() {
            self.words.resize(words.max(self.words.len()), 0);
            self.words[words - 1] |= 1 << (block % 64);
        }
    }

    /// Removes a block; returns true if it was recorded.
    pub(super) fn take(&mut self, block: u32) -> bool {
        let was_there = self.contains(block);
        if was_there {
            self.words[block as usize / 64] &= !(1 << (block % 64));
        }
        was_there
    }

    pub(super) fn clear(&mut self) {
        self.words.clear();
    }

    /// All recorded blocks. O(blocks).
    pub(super) fn all(&self) -> impl Iterator<Item = u32> {
        (0..self.words.len() as u32 * 64).filter(|&block| self.contains(block))
    }

    pub(super) fn bytes(&self) -> usize {
        self.words.capacity() * size_of::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_latest() {
        let mut roots = Roots::default();
        let key = |name: u8| BlockKey([name; 32]);
        for name in (0..70).chain(0..3) {
            roots.note(&key(name));
            roots.note(&key(name));
        }
        let mut kept: Vec<_> = roots.others(&key(69)).map(|key| key.0[0]).collect();
        kept.sort_unstable();
        assert_eq!(kept, (0..3).chain(9..69).collect::<Vec<_>>());
    }
}
