//! Where prefixes begin: the roots that were seen last, and the blocks that follow none.

use super::key::BlockKey;

/// The roots under which prefixes were indexed, none twice: one for each salt, the latest 64. With them an explanation can make the
/// keys of a prompt again as others have them.
#[derive(Debug, Default)]
pub(super) struct Roots {
    kept: Vec<BlockKey>,
    /// The place of the oldest, once all are taken.
    oldest: usize,
}

impl Roots {
    const KEPT_MAX: usize = 64;

    /// Keeps a root; a hint, so that one there is no memory for is not kept.
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

    /// All but one.
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

/// The indexed blocks that follow none, a bit each; one there is no memory for is not noted.
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

    /// Takes a block out; answers whether it was there.
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

    /// All of them. O(blocks).
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
