//! Tokens that are asked for, and what they mean beside their ids.

use super::extra::Extras;
use super::key::BlockKey;
use crate::count::count;
use crate::error::{Result, reserve};

/// A prompt under a root.
#[derive(Clone, Copy, Debug)]
pub struct Prompt<'a> {
    /// The key of no token.
    pub root: &'a BlockKey,
    /// The ids of its tokens.
    pub tokens: &'a [u32],
    /// What else decides what they mean.
    pub extras: &'a Extras,
}

impl<'a> Prompt<'a> {
    /// Refuses more tokens than can be counted.
    pub fn check(&self) -> Result<()> {
        count("tokens.length", self.tokens.len() as u64).map(drop)
    }

    /// Blocks of it that may be found: whole ones, at most all tokens but the last, since its logits are needed.
    pub fn blocks_max(&self, size: usize) -> usize {
        self.tokens.len().saturating_sub(1) / size
    }

    /// The tokens of the block at a place.
    pub fn block(&self, place: usize, size: usize) -> &'a [u32] {
        &self.tokens[place * size..(place + 1) * size]
    }

    /// The key before the block at a place, whose predecessors have these keys.
    pub fn parent(&self, keys: &'a [BlockKey], place: usize) -> &'a BlockKey {
        place.checked_sub(1).map_or(self.root, |last| &keys[last])
    }

    /// The keys of its first `blocks` blocks. O(tokens).
    pub fn keys(&self, blocks: usize, size: usize) -> Result<Vec<BlockKey>> {
        let (mut keys, mut last) = (Vec::new(), *self.root);
        reserve(&mut keys, blocks, "blocks of a prompt")?;
        keys.extend((0..blocks).map(|place| {
            last = last.child(self.block(place, size), (place * size) as u32, self.extras);
            last
        }));
        Ok(keys)
    }
}
