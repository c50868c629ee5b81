//! The known tokens of a table, and the keys of its blocks.
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
    /// The key of the last block that left the window: tokens go on from it after a cut right behind it.
    passed: Option<BlockKey>,
    /// How often all prefixes had been forgotten when these keys were made.
    forgotten: u64,
}

impl KeyChain {
    /// No tokens yet.
    pub fn new(identity: Identity, forgotten: u64) -> Self {
        let Identity { root, extra } = identity;
        KeyChain { last: root, root, extra, known: 0, keyed: 0, passed: None, forgotten }
    }

    /// The chain of a prefix that was found, with the keys of its last whole block and of the last that left the
    /// window.
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

    /// Whether both have the same identity.
    pub fn has_identity_of(&self, other: &KeyChain) -> bool {
        (self.root, &self.extra) == (other.root, &other.extra)
    }

    /// Forgets all tokens if prefixes were forgotten since its keys were made.
    pub fn forget_before(&mut self, forgotten: u64) {
        if self.forgotten < forgotten {
            self.forget();
            self.forgotten = forgotten;
        }
    }

    fn forget(&mut self) {
        (self.known, self.keyed, self.last, self.passed) = (0, 0, self.root, None);
    }

    /// Forgets the ids of tokens behind the first `tokens`.
    pub fn limit(&mut self, tokens: u32) {
        self.known = self.known.min(tokens);
    }

    /// Notes that the ids of tokens at a position are known.
    pub fn extend(&mut self, position: u32, tokens: u32) {
        if self.known == position {
            self.known += tokens;
        }
    }

    /// Forgets the tokens from `length` on; `blocks` whole blocks lie before it. `key` gives the key of the last of
    /// them, which may be the last that left the window.
    pub fn cut(&mut self, length: u32, blocks: u32, key: impl FnOnce(u32, Option<BlockKey>) -> Option<BlockKey>) {
        self.limit(length);
        if self.keyed <= blocks {
            return;
        }
        self.keyed = blocks;
        let last = blocks.checked_sub(1).map_or(Some(self.root), |last| key(last, self.passed));
        match last {
            Some(last) => self.last = last,
            // Without that key, no later block can get one.
            None => self.forget(),
        }
    }

    /// Gives the next block, whose tokens are all known, its key.
    pub fn name_next(&mut self, block: u32, pool: &mut PagePool) {
        let position = self.keyed * pool.block_size();
        let key = self.last.child(pool.index().tokens(block), position, &self.extra);
        pool.name(block, &key, &self.last, position, &self.extra);
        self.last = key;
        self.keyed += 1;
    }

    /// The key that the block at a place will get; `tokens` gives the tokens of a place.
    pub fn upcoming<'a>(&self, place: u32, size: u32, tokens: impl Fn(u32) -> Option<&'a [u32]>) -> Option<BlockKey> {
        (self.keyed..place + 1)
            .try_fold(self.last, |before, at| Some(before.child(tokens(at)?, at * size, &self.extra)))
    }

    pub fn pass(&mut self, key: Option<BlockKey>) {
        self.passed = key;
    }
}
