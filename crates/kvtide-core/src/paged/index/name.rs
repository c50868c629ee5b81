//! What a block is found by, whole: for those who write it down and bring it back.

use super::key::BlockKey;

/// What a block is found by: its key, and what the key is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockName<'a> {
    /// Its key.
    pub key: BlockKey,
    /// The key of the prefix before it, or the [tag](BlockKey::tag) of that alone.
    pub parent: BlockKey,
    /// All its tokens.
    pub tokens: &'a [u32],
    /// The extras over it, encoded.
    pub extras: &'a [u8],
}

impl BlockName<'_> {
    /// Whether the key is that of the tokens and extras behind the parent, as far as that is known.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.parent.is_tag() || self.follows(&self.parent)
    }

    /// Whether the key is that of the tokens and extras behind this parent.
    #[must_use]
    pub fn follows(&self, parent: &BlockKey) -> bool {
        parent.tag() == self.parent.tag() && parent.child_of(self.tokens, self.extras) == self.key
    }
}
