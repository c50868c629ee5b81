//! The roots under which prefixes were indexed: one for each salt, the latest 64.
//!
//! Kept so that [`explain`](super::explain) can say that a prompt is there, though for others: the chain of keys is made again
//! from each root. That costs nothing for each block, and nothing until someone asks.
//!
//! Invariant: no root is kept twice. O(roots kept).

use super::key::BlockKey;

const KEPT_MAX: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Roots {
    kept: Vec<BlockKey>,
    /// The place of the oldest, once all are taken.
    oldest: usize,
}

impl Roots {
    /// Keeps a root; a hint, so that one there is no memory for is not kept.
    pub(super) fn note(&mut self, root: &BlockKey) {
        if self.kept.contains(root) {
            return;
        }
        if self.kept.len() < KEPT_MAX {
            if self.kept.try_reserve(1).is_ok() {
                self.kept.push(*root);
            }
            return;
        }
        self.kept[self.oldest] = *root;
        self.oldest = (self.oldest + 1) % KEPT_MAX;
    }

    /// All but one.
    pub(super) fn others(&self, root: &BlockKey) -> impl Iterator<Item = &BlockKey> {
        self.kept.iter().filter(move |kept| *kept != root)
    }

    /// Bytes taken.
    pub(super) fn bytes(&self) -> usize {
        self.kept.capacity() * size_of::<BlockKey>()
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
