//! The longest prefix of a list of tokens that is in the index.
//!
//! ```text
//! tokens   [ block 0 ][ block 1 ][ block 2 ][ blo        the last token is computed in any case: its logits are needed
//! found        4          2         none
//! partial                        9, its first 3 tokens
//! ```
//!
//! Keys of some blocks are made ahead and then looked up together: each look-up waits for memory three times, and those of
//! different blocks do so at the same time. That is what makes a large, cold index bearable.
//!
//! O(tokens); of what is not found, at most eight blocks are hashed.

use super::extra::Extras;
use super::index::PrefixIndex;
use super::key::Key;
use crate::count::count;
use crate::error::{Error, Result};

/// Blocks whose keys are made before they are looked up.
const AHEAD: usize = 8;

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Whole blocks, in order.
    pub blocks: Vec<u32>,
    /// Their keys.
    pub keys: Vec<Key>,
}

impl PrefixIndex {
    /// The blocks that hold the longest prefix of `tokens` under a root; at most all tokens but the last one.
    pub fn find_prefix(&self, root: &Key, tokens: &[u32], extras: &Extras) -> Result<Found> {
        count("tokens.length", tokens.len() as u64)?;
        let size = self.block_size() as usize;
        let whole = tokens.len().saturating_sub(1) / size;
        let mut found = Found::default();
        let mut keys = [*root; AHEAD + 1];
        for batch in tokens[..whole * size].chunks(size.saturating_mul(AHEAD)) {
            let start = (found.blocks.len() * size) as u32;
            let number = self.find_batch(&mut keys, batch, start, extras, &mut found)?;
            if number * size < batch.len() {
                break;
            }
            keys[0] = keys[number];
        }
        Ok(found)
    }

    /// What follows a prefix that was found: a block that begins with some of the tokens behind it, and how many; the last token
    /// is computed in any case.
    #[must_use]
    pub fn find_rest(&self, root: &Key, tokens: &[u32], extras: &Extras, found: &Found) -> Option<(u32, u32)> {
        let start = found.blocks.len() * self.block_size() as usize;
        let end = tokens.len().saturating_sub(1).min(start + self.block_size() as usize);
        self.find_partial(found.keys.last().unwrap_or(root), &tokens[start..end], start as u32, extras)
    }

    /// Adds to `found` as many blocks of a batch as there are, and says how many; `keys[0]` is that of the prefix before.
    fn find_batch(
        &self,
        keys: &mut [Key; AHEAD + 1],
        batch: &[u32],
        start: u32,
        extras: &Extras,
        found: &mut Found,
    ) -> Result<usize> {
        let size = self.block_size();
        let blocks = || batch.chunks_exact(size as usize).zip((start..).step_by(size as usize)).enumerate();
        let number = batch.len() / size as usize;
        let out_of_memory = |_| Error::OutOfMemory { count: u64::from(start) + batch.len() as u64, what: "tokens" };
        found.blocks.try_reserve(number).map_err(out_of_memory)?;
        found.keys.try_reserve(number).map_err(out_of_memory)?;
        // Each of these loops waits for one kind of memory, for all blocks at once.
        for (at, (tokens, position)) in blocks() {
            keys[at + 1] = keys[at].child(tokens, position, extras);
        }
        let mut firsts = [0; AHEAD];
        for at in 0..number {
            firsts[at] = self.records.first(&keys[at + 1]);
        }
        let mut candidates = [None; AHEAD];
        for at in 0..number {
            candidates[at] = self.records.resolve(firsts[at], &keys[at + 1], &keys[at]);
        }
        for (at, (tokens, position)) in blocks() {
            match candidates[at].filter(|&block| self.holds(block, tokens, position, extras)) {
                Some(block) => {
                    found.blocks.push(block);
                    found.keys.push(keys[at + 1]);
                }
                None => return Ok(at),
            }
        }
        Ok(number)
    }
}
