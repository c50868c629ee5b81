//! The full name of a block in the prefix cache, for saving and loading it.

use super::key::BlockKey;

/// The name of a block: its key, and the input that the key was computed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockName<'a> {
    /// The block's key.
    pub key: BlockKey,
    /// The key of the prefix before it, or only the [tag](BlockKey::tag) of that key.
    pub parent: BlockKey,
    /// All tokens of the block.
    pub tokens: &'a [u32],
    /// The block's extras, encoded.
    pub extras: &'a [u8],
}

impl BlockName<'_> {
    /// True if the key belongs to the tokens and extras behind the parent. Cannot be checked if only the parent's tag
    /// is known; then true.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.parent.is_tag() || self.follows(&self.parent)
    }

    /// True if the key belongs to the tokens and extras behind this parent.
    #[must_use]
    pub fn follows(&self, parent: &BlockKey) -> bool {
        parent.tag() == self.parent.tag() && parent.child_of(self.tokens, self.extras) == self.key
    }
}
