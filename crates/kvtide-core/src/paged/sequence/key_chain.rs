//! Which tokens a table holds, as far as that is known, and the keys of its blocks.
//!
//! ```text
//! blocks   [ key ][ key ][ full ][ part ]       known: 50 tokens, keyed: 2 blocks, last: the key of the second
//! ```
//!
//! Invariant: blocks with a key are leading ones, and all their tokens are known.

use std::sync::Arc;

use crate::paged::index::{BlockKey, Extras, Identity};
use crate::paged::pool::PagePool;

/// The keys of a table's blocks, each following from the one before.
#[derive(Clone, Debug)]
pub struct KeyChain {
    /// The key of no token.
    root: BlockKey,
    /// What else decides what the tokens mean.
    extra: Arc<Extras>,
    /// Leading tokens whose ids are known.
    known: u32,
    /// Leading blocks that have a key.
    keyed: u32,
    /// The key of the last of them, or of no token.
    last: BlockKey,
    /// The key of the last block that left the window, which tokens go on from that are cut off behind it.
    passed: Option<BlockKey>,
    /// How often everything had been forgotten when they got theirs.
    forgotten: u64,
}

impl KeyChain {
    /// Nothing yet.
    pub fn new(identity: Identity, forgotten: u64) -> Self {
        let Identity { root, extra } = identity;
        KeyChain { last: root, root, extra, known: 0, keyed: 0, passed: None, forgotten }
    }

    /// The same of tokens that were found, with the keys of the last whole block and of the last that left the window.
    pub fn found(mut self, tokens: u32, blocks: u32, last: Option<BlockKey>, passed: Option<BlockKey>) -> Self {
        (self.known, self.keyed, self.last, self.passed) = (tokens, blocks, last.unwrap_or(self.root), passed);
        self
    }

    pub fn known(&self) -> u32 {
        self.known
    }

    pub fn keyed(&self) -> u32 {
        self.keyed
    }

    /// Whether tokens of both mean the same.
    pub fn has_identity_of(&self, other: &KeyChain) -> bool {
        (self.root, &self.extra) == (other.root, &other.extra)
    }

    /// Nothing is known of tokens whose keys were forgotten while nobody had them in a sequence.
    pub fn forget_before(&mut self, forgotten: u64) {
        if self.forgotten < forgotten {
            self.forget();
            self.forgotten = forgotten;
        }
    }

    fn forget(&mut self) {
        (self.known, self.keyed, self.last, self.passed) = (0, 0, self.root, None);
    }

    /// No more than so many tokens are known.
    pub fn limit(&mut self, tokens: u32) {
        self.known = self.known.min(tokens);
    }

    /// The ids of tokens at a position are known now.
    pub fn extend(&mut self, position: u32, tokens: u32) {
        if self.known == position {
            self.known += tokens;
        }
    }

    /// Forgets what is known of the tokens from `length` on, before which `blocks` whole ones lie. `key` is asked for the key of the
    /// last of them, which may be that of the last one that left the window.
    pub fn cut(&mut self, length: u32, blocks: u32, key: impl FnOnce(u32, Option<BlockKey>) -> Option<BlockKey>) {
        self.limit(length);
        if self.keyed <= blocks {
            return;
        }
        self.keyed = blocks;
        let last = blocks.checked_sub(1).map_or(Some(self.root), |last| key(last, self.passed));
        match last {
            Some(last) => self.last = last,
            // It was forgotten, and took what the tokens to come would follow with it.
            None => self.forget(),
        }
    }

    /// Gives the next block its key; all its tokens are known.
    pub fn name_next(&mut self, block: u32, pool: &mut PagePool) {
        let position = self.keyed * pool.block_size();
        let key = self.last.child(pool.index().tokens(block), position, &self.extra);
        pool.name(block, &key, &self.last, position, &self.extra);
        self.last = key;
        self.keyed += 1;
    }

    /// The key that the block at a place will have, behind the blocks that have one; `tokens` gives those of a place.
    pub fn upcoming<'a>(&self, place: u32, size: u32, tokens: impl Fn(u32) -> Option<&'a [u32]>) -> Option<BlockKey> {
        (self.keyed..place + 1)
            .try_fold(self.last, |before, at| Some(before.child(tokens(at)?, at * size, &self.extra)))
    }

    /// Notes the key of the last block that left the window.
    pub fn pass(&mut self, key: Option<BlockKey>) {
        self.passed = key;
    }
}
