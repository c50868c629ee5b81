//! Whose tokens they are, and the prompts that are looked for: tokens are found by those alone who have the same identity.

use std::sync::Arc;

use super::key::{BlockKey, Extras};
use crate::count::{COUNT_MAX, count, count_positive};
use crate::error::{Result, reserve};

/// What the tokens of a new sequence are, beside their ids.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The key of no token: of the model, the tenant, the process.
    pub root: BlockKey,
    /// What else decides what the tokens mean.
    pub extra: Arc<Extras>,
}

impl Identity {
    /// The names of the whole blocks of a prompt, of `block_size` tokens each: there is no need of a cache. O(tokens).
    pub fn keys(&self, tokens: &[u32], block_size: u32) -> Result<Vec<BlockKey>> {
        let size = count_positive("blockSize", block_size.into())? as usize;
        let prompt = self.prompt(tokens);
        prompt.check()?;
        prompt.keys(tokens.len() / size, size)
    }

    /// A name of its own: of the root and of all extras.
    pub fn owner(&self) -> Result<BlockKey> {
        Ok(self.root.child_of(&[], &self.extra.encoding(0..COUNT_MAX)?))
    }

    pub(in crate::paged) fn prompt<'a>(&'a self, tokens: &'a [u32]) -> Prompt<'a> {
        Prompt { root: &self.root, tokens, extras: &self.extra }
    }
}

impl Default for Identity {
    /// Nobody's: of a cache that nothing is found in by its tokens.
    fn default() -> Self {
        Identity { root: BlockKey([0; 32]), extra: Arc::default() }
    }
}

/// A prompt under a root.
#[derive(Clone, Copy, Debug)]
pub struct Prompt<'a> {
    /// The key of no token.
    pub root: &'a BlockKey,
    pub tokens: &'a [u32],
    /// What else decides what they mean.
    pub extras: &'a Extras,
}

impl<'a> Prompt<'a> {
    pub fn check(&self) -> Result<()> {
        count("tokens.length", self.tokens.len() as u64).map(drop)
    }

    /// Blocks of it that may be found: whole ones, at most all tokens but the last, since its logits are needed.
    pub fn blocks_max(&self, size: usize) -> usize {
        self.tokens.len().saturating_sub(1) / size
    }

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
