//! The blocks and tokens of a sequence, a snapshot or a cached prefix.
//!
//! ```text
//! tokens   [ sinks ) ......... [ committed - window .. committed )
//! blocks   [ kept  ][ cleared  ][ kept ...
//! ```
//!
//! A block is released once the last committed token, and so every later token, no longer attends to it. So attention
//! for the last token has its whole window after an append, also if a draft was rolled back.

mod states;

use std::ops::Range;
use std::sync::Arc;

use crate::error::Result;
use crate::paged::index::{BlockKey, Extras, Identity};
use crate::paged::pool::PagePool;
use crate::paged::table::{Table, Tables};
use crate::paged::window::Window;

pub use states::Checkpoint;

/// A block table and the tokens in it.
#[derive(Debug)]
pub struct Content {
    table: Table,
    /// Number of tokens, including those of open drafts.
    length: u32,
    keys: KeyChain,
    /// Blocks before this place, except sinks, left the window.
    cleared: u32,
    /// The checkpoints that it left behind, if it keeps states.
    checkpoints: Option<Arc<Vec<Checkpoint>>>,
}

impl Content {
    pub fn new(keys: KeyChain) -> Self {
        Content { table: Table::default(), length: 0, keys, cleared: 0, checkpoints: None }
    }

    /// The content of a cached prefix: its blocks, and the keys of the last full one and of the last that left the
    /// window. Its memory is reserved.
    pub fn found(
        blocks: &[Option<u32>],
        length: u32,
        keys: [Option<BlockKey>; 2],
        of: KeyChain,
        tables: &mut Tables,
    ) -> Self {
        let mut table = Table::default();
        blocks.iter().for_each(|&block| tables.add(&mut table, block));
        let keys = of.found(length, length / tables.block_size(), keys[0], keys[1]);
        let cleared = blocks.iter().rposition(Option::is_none).map_or(0, |place| place as u32 + 1);
        Content { table, length, keys, cleared, checkpoints: None }
    }

    /// The saved content in these blocks, without known tokens yet.
    pub fn saved(table: Table, length: u32, cleared: u32, keys: KeyChain) -> Self {
        Content { table, length, keys, cleared, checkpoints: None }
    }

    /// Its blocks, for other content.
    pub fn into_table(self) -> Table {
        self.table
    }

    /// Records the saved ids, and gives full blocks their keys again, as far as they can be computed from the root.
    /// Behind a window, they are computed from the key of the last block that left it, if the root is the one that it
    /// was saved under.
    pub fn name_saved(&mut self, saved: &SavedChain, tables: &mut Tables) {
        let size = tables.block_size();
        (self.keys.known, self.keys.nameless) = (saved.known, saved.nameless);
        while self.keys.keyed() < saved.keyed {
            let place = self.keys.keyed();
            let Some(block) = tables.get(&self.table, place) else {
                let passed = saved.passed.filter(|_| self.keys.root == saved.root && saved.keyed >= self.cleared);
                let Some(passed) = passed.filter(|_| place < self.cleared) else {
                    return self.keys.limit(place * size);
                };
                (self.keys.keyed, self.keys.last, self.keys.passed) = (self.cleared, passed, Some(passed));
                continue;
            };
            if !tables.pool().is_sealed(block) || !self.keys.name_next(block, tables.pool_mut()) {
                return;
            }
        }
    }

    /// Forgets the ids of all tokens: they never get a key.
    pub fn forget_ids(&mut self) {
        self.keys.forget();
    }

    /// Returns content that shares all blocks and tokens.
    #[inline]
    pub fn fork(&self, tables: &mut Tables) -> Self {
        let (table, checkpoints) = (tables.fork(&self.table), self.checkpoints.clone());
        Content { table, keys: self.keys.clone(), checkpoints, ..*self }
    }

    pub fn release(self, tables: &mut Tables) {
        tables.release(self.table);
    }

    pub fn table(&self) -> &Table {
        &self.table
    }

    pub fn length(&self) -> u32 {
        self.length
    }

    pub fn cleared(&self) -> u32 {
        self.cleared
    }

    pub fn keys(&self) -> &KeyChain {
        &self.keys
    }

    pub fn keys_mut(&mut self) -> &mut KeyChain {
        &mut self.keys
    }

    /// Forgets the ids of its tokens if prefixes were forgotten since it was made.
    pub fn forget_before(&mut self, forgotten: u64) {
        self.keys.forget_before(forgotten, self.length);
    }

    pub(super) fn set_length(&mut self, length: u32) {
        self.length = length;
    }

    pub(super) fn table_mut(&mut self) -> &mut Table {
        &mut self.table
    }

    /// Drops the tokens from `length` on and the blocks that have no tokens then, but keeps those of the first `blocks`
    /// that others do not see. Slots of a block that others see stay marked: the sequence does not see slots behind its
    /// length, and copies the block before it writes there.
    pub(super) fn cut(&mut self, length: u32, blocks: u32, tables: &mut Tables) {
        let size = tables.block_size();
        let covered = length.div_ceil(size);
        let mut kept = covered.max(blocks).min(self.table.len());
        // A seen block without tokens is not kept: its old content would become visible when the sequence grows again.
        let mut cut_off = covered..kept.min(self.length.div_ceil(size));
        if let Some(first) = cut_off.find(|&place| tables.is_seen(&self.table, place)) {
            kept = first;
        }
        tables.truncate(&mut self.table, kept);
        if self.length > length {
            for place in length / size..kept {
                if let Some(block) = tables.get(&self.table, place)
                    && !tables.is_seen(&self.table, place)
                {
                    tables.pool_mut().cut(block, length.saturating_sub(place * size));
                }
            }
        }
        self.length = length;
        self.cut_keys(length, tables);
        self.cleared = self.cleared.min(covered);
    }

    /// Forgets the ids and keys of the tokens from `length` on.
    pub(super) fn cut_keys(&mut self, length: u32, tables: &Tables) {
        let Content { table, keys, cleared, .. } = self;
        keys.cut(length, length / tables.block_size(), |last, passed| match tables.get(table, last) {
            Some(block) => tables.pool().index().key(block).copied(),
            // For blocks that left the window, only the key of the last is known.
            None => passed.filter(|_| last + 1 == *cleared),
        });
    }

    /// Number of leading tokens that equal `tokens`, as far as their ids are known. For tokens that left the window,
    /// the keys are compared. O(tokens).
    pub fn common(&self, tokens: &[u32], tables: &Tables) -> u32 {
        let (size, index) = (tables.block_size(), tables.pool().index());
        let known = self.keys.known().min(u32::try_from(tokens.len()).unwrap_or(u32::MAX));
        let mut at = 0;
        while at < known {
            let Some(block) = tables.get(&self.table, at / size) else {
                let passed = self.cleared * size;
                if known < passed || self.keys.passed != Some(self.keys.name(&tokens[..passed as usize], size)) {
                    return at;
                }
                at = passed;
                continue;
            };
            let there = (known - at).min(size);
            let own = index.tokens(block)[..there as usize].iter().zip(&tokens[at as usize..]);
            let alike = own.take_while(|(own, token)| own == token).count() as u32;
            at += alike;
            if alike < there {
                return at;
            }
        }
        at
    }

    /// The first position whose known id differs from that in `tokens`.
    pub fn differs(&self, tokens: &[u32], tables: &Tables) -> Option<u32> {
        let known = self.keys.known().min(u32::try_from(tokens.len()).unwrap_or(u32::MAX));
        // Nothing is known of tokens that left the window if the key of their prefix is missing.
        let is_there = |&at: &u32| {
            let place = at / tables.block_size();
            tables.get(&self.table, place).is_some() || known >= self.cleared * tables.block_size()
        };
        Some(self.common(tokens, tables)).filter(|&at| at < known).filter(is_there)
    }

    /// Records the ids of its leading tokens, which must not differ from known ids, and returns the number of known ids
    /// afterwards. Ids in blocks that others see are not overwritten: from there on, and after all prefixes were
    /// forgotten, nothing is recorded.
    pub(super) fn identify(&mut self, tokens: &[u32], tables: &mut Tables) -> u32 {
        let size = tables.block_size();
        let given = u32::try_from(tokens.len()).unwrap_or(u32::MAX).min(self.length);
        while self.keys.can_learn() && self.keys.known() < given {
            let (at, place) = (self.keys.known(), self.keys.known() / size);
            let end = given.min((place + 1) * size);
            let ids = &tokens[at as usize..end as usize];
            let Some(block) = tables.get(&self.table, place) else {
                // The block left the window: only its key is needed, for the blocks behind it.
                if self.keys.keyed() < place || end < (place + 1) * size {
                    break;
                }
                self.keys.pass_over(&tokens[(place * size) as usize..end as usize], size, place + 1 == self.cleared);
                continue;
            };
            let slots = (at % size) as usize..(end - place * size) as usize;
            if tables.pool().index().tokens(block)[slots] != *ids {
                if tables.is_seen(&self.table, place) {
                    break;
                }
                tables.pool_mut().set_tokens(block, at % size, ids);
            }
            self.keys.extend(at, end - at);
            // Blocks before one that left the window must get their keys first.
            self.name_blocks(end, tables);
        }
        self.keys.known()
    }

    /// Gives keys to full blocks with known tokens among the first `committed` tokens. If another block with the same
    /// tokens is in the prefix cache, this block waits to replace it.
    pub(super) fn name_blocks(&mut self, committed: u32, tables: &mut Tables) {
        let whole = self.keys.known().min(committed) / tables.block_size();
        while self.keys.keyed() < whole {
            match tables.get(&self.table, self.keys.keyed()).filter(|&block| tables.pool().is_sealed(block)) {
                Some(block) if self.keys.name_next(block, tables.pool_mut()) => {}
                _ => break,
            }
        }
    }

    /// Releases the blocks that the last committed token no longer attends to. Memory for it is reserved.
    pub(super) fn clear_passed(&mut self, committed: u32, window: Window, tables: &mut Tables) {
        let size = tables.block_size();
        let end = window.first_seen(committed.saturating_sub(1)) / size;
        let from = self.cleared.max(window.sinks().div_ceil(size));
        if end > from {
            let last = tables.get(&self.table, end - 1).filter(|_| end <= self.keys.keyed());
            self.keys.pass(last.and_then(|block| tables.pool().index().key(block)).copied());
            tables.clear(&mut self.table, from, end);
            self.cleared = end;
        }
    }

    /// True if tokens shortly before `position`, which the token there would attend to, were dropped. Sinks are never
    /// dropped.
    pub fn is_gone(&self, position: u32, window: Window, size: u32) -> bool {
        let sinks = window.sinks().div_ceil(size);
        position > sinks * size && (window.first_seen(position) / size).max(sinks) < self.cleared
    }

    pub fn gap(&self, window: Option<Window>, size: u32) -> Range<u32> {
        let gap = self.passed(window, size);
        gap.start * size..gap.end * size
    }

    /// The places that left the window.
    pub fn passed(&self, window: Option<Window>, size: u32) -> Range<u32> {
        let sinks = window.map_or(0, |window| window.sinks().div_ceil(size));
        sinks.min(self.cleared)..self.cleared
    }
}

/// Blocks and tokens that stay unchanged until they are released.
#[derive(Debug)]
#[must_use = "its blocks stay held until it is released"]
pub struct HeldContent(pub(in crate::paged) Content);

impl HeldContent {
    /// Number of tokens.
    #[must_use]
    pub fn length(&self) -> u32 {
        self.0.length()
    }
}

/// The known ids and keys of a sequence's tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavedChain {
    /// The key of the empty prefix.
    pub root: BlockKey,
    /// The owner of the tokens: see [`Identity::owner`].
    pub owner: BlockKey,
    /// Number of leading tokens whose ids are known.
    pub known: u32,
    /// Number of leading blocks that have a key.
    pub keyed: u32,
    /// Number of leading tokens that never get a key.
    pub nameless: u32,
    /// The key of the last block that left the window.
    pub passed: Option<BlockKey>,
}

/// The keys of a table's blocks, each computed from the one before.
#[derive(Clone, Debug)]
pub struct KeyChain {
    /// The key of the empty prefix.
    root: BlockKey,
    /// The extras: what the tokens depend on besides their ids.
    extra: Arc<Extras>,
    /// Number of leading tokens whose ids are known.
    known: u32,
    /// Number of leading blocks that have a key.
    keyed: u32,
    /// The key of the last of these blocks, or of the empty prefix.
    last: BlockKey,
    /// The key of the last block that left the window: tokens continue from it after a cut right behind it.
    passed: Option<BlockKey>,
    /// Number of times that all prefixes had been forgotten when these keys were made.
    forgotten: u64,
    /// Number of leading tokens that were present when all prefixes were forgotten: they never get a key.
    nameless: u32,
}

impl KeyChain {
    pub fn new(identity: Identity, forgotten: u64) -> Self {
        let Identity { root, extra } = identity;
        KeyChain { last: root, root, extra, known: 0, keyed: 0, passed: None, forgotten, nameless: 0 }
    }

    /// The chain of a cached prefix, with the keys of its last full block and of the last block that left the window.
    pub fn found(mut self, tokens: u32, blocks: u32, last: Option<BlockKey>, passed: Option<BlockKey>) -> Self {
        (self.known, self.keyed, self.last, self.passed) = (tokens, blocks, last.unwrap_or(self.root), passed);
        self
    }

    /// The part of the chain that is saved.
    pub fn saved(&self) -> Result<SavedChain> {
        let KeyChain { root, known, keyed, nameless, passed, .. } = *self;
        let owner = Identity { root, extra: self.extra.clone() }.owner()?;
        Ok(SavedChain { root, owner, known, keyed, nameless, passed })
    }

    pub fn known(&self) -> u32 {
        self.known
    }

    /// The key of these tokens, which are full blocks from the first on.
    fn name(&self, tokens: &[u32], size: u32) -> BlockKey {
        let blocks = (0..).step_by(size as usize).zip(tokens.chunks(size as usize));
        blocks.fold(self.root, |key, (position, block)| key.child(block, position, &self.extra))
    }

    pub fn keyed(&self) -> u32 {
        self.keyed
    }

    pub fn has_identity_of(&self, other: &KeyChain) -> bool {
        (self.root, &self.extra) == (other.root, &other.extra)
    }

    /// Forgets all of its `length` tokens if prefixes were forgotten since its keys were made.
    pub fn forget_before(&mut self, forgotten: u64, length: u32) {
        if self.forgotten < forgotten {
            self.forget();
            (self.forgotten, self.nameless) = (forgotten, length);
        }
    }

    /// True if ids of its tokens can still be recorded.
    fn can_learn(&self) -> bool {
        self.nameless == 0
    }

    fn forget(&mut self) {
        (self.known, self.keyed, self.last, self.passed) = (0, 0, self.root, None);
    }

    /// Forgets the ids of tokens behind the first `tokens`.
    pub fn limit(&mut self, tokens: u32) {
        self.known = self.known.min(tokens);
    }

    /// Records that the ids of tokens at a position are known.
    pub fn extend(&mut self, position: u32, tokens: u32) {
        if self.known == position {
            self.known += tokens;
        }
    }

    /// Forgets the tokens from `length` on; `blocks` full blocks precede it. `key` returns the key of the last of these
    /// blocks, which may be the last that left the window.
    pub fn cut(&mut self, length: u32, blocks: u32, key: impl FnOnce(u32, Option<BlockKey>) -> Option<BlockKey>) {
        self.limit(length);
        self.nameless = self.nameless.min(length);
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

    /// Gives the next block, whose tokens are all known, its key. Returns false if the block has another key, from
    /// others that hold it.
    pub fn name_next(&mut self, block: u32, pool: &mut PagePool) -> bool {
        let position = self.keyed * pool.block_size();
        let key = self.last.child(pool.index().tokens(block), position, &self.extra);
        if pool.index().key(block).is_some_and(|own| *own != key) {
            return false;
        }
        pool.name(block, &key, &self.last, position, &self.extra);
        self.last = key;
        self.keyed += 1;
        true
    }

    /// Advances past the next block, which left the window, using the ids of its tokens; it may be the last that left.
    fn pass_over(&mut self, tokens: &[u32], size: u32, is_last: bool) {
        self.last = self.last.child(tokens, self.keyed * size, &self.extra);
        self.keyed += 1;
        self.known = self.keyed * size;
        if is_last {
            self.passed = Some(self.last);
        }
    }

    /// The key that the block at a place will get; `tokens` returns the tokens of a place.
    pub fn upcoming<'a>(&self, place: u32, size: u32, tokens: impl Fn(u32) -> Option<&'a [u32]>) -> Option<BlockKey> {
        (self.keyed..place + 1)
            .try_fold(self.last, |before, at| Some(before.child(tokens(at)?, at * size, &self.extra)))
    }

    pub fn pass(&mut self, key: Option<BlockKey>) {
        self.passed = key;
    }
}
