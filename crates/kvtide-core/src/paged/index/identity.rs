//! The identity of tokens (model, tenant and extras), and prompts: tokens are found only by prompts with the same
//! identity.

use std::sync::Arc;

use super::key::{BlockKey, Extras};
use crate::count::{COUNT_MAX, count, count_positive};
use crate::error::{Result, reserve};

/// The properties of a sequence's tokens besides their ids.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The key of the empty prefix: it depends on the model, the tenant and the process.
    pub root: BlockKey,
    /// The extras: what the tokens depend on besides their ids.
    pub extra: Arc<Extras>,
}

impl Identity {
    /// The keys of the full blocks of a prompt, of `block_size` tokens each. No cache is needed. O(tokens).
    pub fn keys(&self, tokens: &[u32], block_size: u32) -> Result<Vec<BlockKey>> {
        let size = count_positive("blockSize", block_size.into())? as usize;
        let prompt = self.prompt(tokens);
        prompt.check()?;
        prompt.keys(tokens.len() / size, size)
    }

    /// A key for this identity: it depends on the root and on all extras.
    pub fn owner(&self) -> Result<BlockKey> {
        Ok(self.root.child_of(&[], &self.extra.encoding(0..COUNT_MAX)?))
    }

    pub(in crate::paged) fn prompt<'a>(&'a self, tokens: &'a [u32]) -> Prompt<'a> {
        Prompt { root: &self.root, tokens, extras: &self.extra }
    }
}

impl Default for Identity {
    /// The identity of a cache whose tokens prompts do not find.
    fn default() -> Self {
        Identity { root: BlockKey([0; 32]), extra: Arc::default() }
    }
}

/// A prompt under a root.
#[derive(Clone, Copy, Debug)]
pub struct Prompt<'a> {
    /// The key of the empty prefix.
    pub root: &'a BlockKey,
    pub tokens: &'a [u32],
    /// The extras: what the tokens depend on besides their ids.
    pub extras: &'a Extras,
}

impl<'a> Prompt<'a> {
    pub fn check(&self) -> Result<()> {
        count("tokens.length", self.tokens.len() as u64).map(drop)
    }

    /// Number of blocks that may be found: full blocks without the last token, since its logits are needed.
    pub fn blocks_max(&self, size: usize) -> usize {
        self.tokens.len().saturating_sub(1) / size
    }

    pub fn block(&self, place: usize, size: usize) -> &'a [u32] {
        &self.tokens[place * size..(place + 1) * size]
    }

    /// The key before the block at a place. `keys` are the keys of the blocks before it.
    pub fn parent(&self, keys: &'a [BlockKey], place: usize) -> &'a BlockKey {
        place.checked_sub(1).map_or(self.root, |last| &keys[last])
    }

    /// The keys of the first `blocks` blocks. O(tokens).
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
