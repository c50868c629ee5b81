//! The index of the prefix cache: finds the block of a prefix.
//!
//! ```text
//! block   tokens            key    indexed
//!   4     [ 11, 12, 13, 14 ]  h_1     yes      found by h_1, or by its first tokens as a child of h_0
//!   2     [ 15, 16, 17, 18 ]  h_2     yes
//!   9     [ 15, 16, 17, 18 ]  h_2     no       filled at the same time as 2: keeps its key, is found once 2 is gone
//!   5     [ 19, .. ]          -       no       not full yet
//! ```
//!
//! The longest prefix of a prompt is found block by block; the last token is always computed, since its logits are
//! needed. The keys of eight blocks are computed ahead and looked up together: each look-up waits for memory three
//! times, and those of different blocks wait at the same time.
//!
//! A block is found only if key, parent, tokens and extras are equal, so colliding keys cause misses and never wrong
//! hits. The caller decides when a block gets its key, and knows which slots contain tokens.
//!
//! O(1) per block, plus hashing and comparing its tokens. Memory, up to the highest reserved block: `block_size` tokens
//! of 4 bytes, 55 to 58 bytes of the index (48 record, 6 to 9 tables, 1 evicted), and the extras of blocks that have
//! any.

use std::collections::HashMap;
use std::ops::Range;

use super::events::EventLog;
use super::evicted::Evicted;
use super::identity::Prompt;
use super::key::{BlockKey, Extras};
use super::name::BlockName;
use super::records::Records;
use super::roots::{Firsts, Roots};
use crate::count::{count, count_positive};
use crate::error::{Error, Result};
use crate::paged::per_block::PerBlock;

/// The most children of one prefix that are compared when the start of a block is looked up.
const COMPARED_MAX: usize = 64;

/// Number of blocks whose keys are computed before they are looked up.
const AHEAD: usize = 8;

/// The prefix of a prompt that was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundPrefix {
    /// The full blocks, in order.
    pub blocks: Vec<u32>,
    /// Their keys.
    pub keys: Vec<BlockKey>,
}

/// Finds blocks by their tokens.
#[derive(Debug)]
pub struct PrefixIndex {
    block_size: u32,
    records: Records,
    tokens: PerBlock<u32>,
    /// The encoded extras of indexed blocks that have any.
    extras: HashMap<u32, Vec<u8>>,
    /// The indexed blocks that are the first of their prompts.
    firsts: Firsts,
    len: u32,
    evicted: Evicted,
    roots: Roots,
    events: EventLog,
}

impl PrefixIndex {
    /// Returns an empty index of blocks below `capacity`, of `block_size` tokens each.
    pub fn new(capacity: u32, block_size: u32) -> Result<Self> {
        let capacity = count("capacity", capacity.into())?;
        let block_size = count_positive("blockSize", block_size.into())?;
        Ok(PrefixIndex {
            block_size,
            records: Records::new(capacity, 256),
            tokens: PerBlock::new(capacity, block_size, 0),
            extras: HashMap::new(),
            firsts: Firsts::default(),
            len: 0,
            evicted: Evicted::new(capacity),
            roots: Roots::default(),
            events: EventLog::default(),
        })
    }

    /// Keeps the latest `capacity` events from now on.
    pub fn keep_events(&mut self, capacity: u32) {
        self.events = EventLog::new(capacity);
    }

    /// Numbers events together with those of another index.
    pub fn join_events(&mut self, other: &PrefixIndex) {
        self.events.join(&other.events);
    }

    /// Compares only the first bits of keys, so that a test can provoke collisions.
    #[doc(hidden)]
    pub fn with_key_bits(mut self, bits: u32) -> Self {
        self.records = Records::new(self.records.capacity(), bits);
        self
    }

    /// Reserves memory for a block and for those before it.
    pub fn reserve(&mut self, block: u32) -> Result<()> {
        self.tokens.reserve(block)?;
        self.records.reserve(block)
    }

    /// Number of tokens in a block.
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// Records tokens of a block that is not indexed, from a slot on.
    pub fn set_tokens(&mut self, block: u32, slot: u32, tokens: &[u32]) {
        assert!(!self.records.is_indexed(block), "block {block} is indexed with its tokens");
        self.tokens.row_mut(block)[slot as usize..][..tokens.len()].copy_from_slice(tokens);
    }

    /// Copies the first `kept` tokens of a block to another one that is not indexed.
    pub(crate) fn copy_tokens(&mut self, source: u32, target: u32, kept: u32) {
        assert!(!self.records.is_indexed(target), "block {target} is indexed with its tokens");
        self.tokens.copy(source, target, kept as usize);
    }

    /// The tokens of a reserved block; arbitrary in slots without a token.
    pub fn tokens(&self, block: u32) -> &[u32] {
        self.tokens.row(block)
    }

    /// The key of a block, if it has one.
    pub fn key(&self, block: u32) -> Option<&BlockKey> {
        self.records.key(block)
    }

    /// The block of a key and of the key before it.
    pub fn block_of(&self, key: &BlockKey, parent: &BlockKey) -> Option<u32> {
        let found = self.records.resolve(self.records.first(key), key, parent);
        found.filter(|&block| self.key(block) == Some(key))
    }

    /// Indexes a block whose tokens are recorded and whose first token is at `position`. Returns false if another block
    /// has this key, whose place the block then waits for, or if there is no memory for its extras. The block keeps its
    /// key in either case.
    pub fn insert(&mut self, block: u32, key: &BlockKey, parent: &BlockKey, position: u32, extras: &Extras) -> bool {
        if position == 0 {
            self.roots.note(parent);
        }
        self.insert_encoded(block, key, parent, extras.encoding(self.positions(position)).ok())
    }

    /// Like `insert`, with the block's extras already encoded; [`None`] if there was no memory for that.
    pub(crate) fn insert_encoded(
        &mut self,
        block: u32,
        key: &BlockKey,
        parent: &BlockKey,
        extras: Option<Vec<u8>>,
    ) -> bool {
        self.records.set_key(block, key);
        if self.records.contains(key) {
            self.records.wait(block);
            return false;
        }
        match extras {
            Some(encoding) if encoding.is_empty() => {}
            Some(encoding) if self.extras.try_reserve(1).is_ok() => drop(self.extras.insert(block, encoding)),
            _ => return false,
        }
        // The caller has noted the root of a first block before.
        let is_first = self.roots.kept().contains(parent);
        if is_first {
            self.firsts.note(block);
        }
        self.records.insert(block, parent);
        self.len += 1;
        self.events.stored(key, parent, self.tokens.row(block), is_first);
        true
    }

    /// The name of an indexed block. It contains only the tag of the parent's key.
    pub fn name(&self, block: u32) -> Option<BlockName<'_>> {
        let key = *self.key(block).filter(|_| self.is_indexed(block))?;
        let extras = self.extras.get(&block).map_or(&[][..], Vec::as_slice);
        Some(BlockName { key, parent: self.records.parent(block), tokens: self.tokens(block), extras })
    }

    /// True if an indexed block is the first of its prompts; false if there was no memory to record it.
    pub(crate) fn is_first(&self, block: u32) -> bool {
        self.firsts.contains(block)
    }

    /// True if a block is indexed under this key.
    pub fn contains(&self, key: &BlockKey) -> bool {
        self.records.contains(key)
    }

    /// The latest roots under which prefixes were indexed.
    pub fn roots(&self) -> &[BlockKey] {
        self.roots.kept()
    }

    /// Adds a root to these.
    pub fn note_root(&mut self, root: &BlockKey) {
        self.roots.note(root);
    }

    /// Finds the blocks of the longest cached prefix of `tokens` under a root, without the last token.
    pub fn find_prefix(&self, root: &BlockKey, tokens: &[u32], extras: &Extras) -> Result<FoundPrefix> {
        count("tokens.length", tokens.len() as u64)?;
        let size = self.block_size as usize;
        let whole = tokens.len().saturating_sub(1) / size;
        let mut found = FoundPrefix::default();
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

    /// Finds a block behind the blocks of these keys that begins with some of the next tokens, and the number of these
    /// tokens. The last token is always computed.
    pub fn find_rest(&self, root: &BlockKey, tokens: &[u32], extras: &Extras, keys: &[BlockKey]) -> Option<(u32, u32)> {
        let start = keys.len() * self.block_size as usize;
        let end = tokens.len().saturating_sub(1).min(start + self.block_size as usize).max(start);
        self.find_partial(keys.last().unwrap_or(root), &tokens[start..end], start as u32, extras)
    }

    /// Adds the leading blocks of a batch that are cached to `found` and returns their number; `keys[0]` is the key of
    /// the prefix before.
    fn find_batch(
        &self,
        keys: &mut [BlockKey; AHEAD + 1],
        batch: &[u32],
        start: u32,
        extras: &Extras,
        found: &mut FoundPrefix,
    ) -> Result<usize> {
        let size = self.block_size;
        let blocks = || batch.chunks_exact(size as usize).zip((start..).step_by(size as usize)).enumerate();
        let number = batch.len() / size as usize;
        let out_of_memory = |_| Error::OutOfMemory { count: u64::from(start) + batch.len() as u64, what: "tokens" };
        found.blocks.try_reserve(number).map_err(out_of_memory)?;
        found.keys.try_reserve(number).map_err(out_of_memory)?;
        // Each of these loops waits for one kind of memory, for all blocks at the same time.
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

    /// Finds the block with exactly these tokens and extras behind this parent.
    pub fn find(
        &self,
        key: &BlockKey,
        parent: &BlockKey,
        tokens: &[u32],
        position: u32,
        extras: &Extras,
    ) -> Option<u32> {
        let found = self.records.resolve(self.records.first(key), key, parent);
        found.filter(|&block| self.holds(block, tokens, position, extras))
    }

    /// Finds the block behind this parent that begins with most of these tokens, and the number of these tokens. At
    /// most 64 blocks are compared; blocks with other extras are skipped.
    pub fn find_partial(
        &self,
        parent: &BlockKey,
        tokens: &[u32],
        position: u32,
        extras: &Extras,
    ) -> Option<(u32, u32)> {
        let mut best = None;
        let mut most = 0;
        for block in self.records.family(parent).take(COMPARED_MAX) {
            let its = self.tokens(block);
            let same = its.iter().zip(tokens).take_while(|(a, b)| a == b).count() as u32;
            let is_child = || {
                self.has_extras(block, position, extras)
                    && self.key(block) == Some(&parent.child(its, position, extras))
            };
            if same > most && is_child() {
                (best, most) = (Some((block, same)), same);
            }
        }
        best
    }

    /// True if a key was in the index and was evicted recently.
    pub(super) fn was_evicted(&self, key: &BlockKey) -> bool {
        self.evicted.contains(key)
    }

    /// True if the last block of a prompt is cached under another root.
    pub(super) fn is_under_another_root(&self, prompt: Prompt<'_>) -> bool {
        self.roots.others(prompt.root).any(|root| {
            let size = self.block_size as usize;
            let (before, last) = prompt.tokens.split_at(prompt.tokens.len() - size);
            let mut parent = *root;
            for (at, block) in before.chunks_exact(size).enumerate() {
                parent = parent.child(block, (at * size) as u32, prompt.extras);
            }
            let position = before.len() as u32;
            self.find(&parent.child(last, position, prompt.extras), &parent, last, position, prompt.extras).is_some()
        })
    }

    /// True if a cached block behind this parent has the same tokens and other extras. At most 64 blocks are compared.
    pub(super) fn is_under_other_extras(
        &self,
        parent: &BlockKey,
        tokens: &[u32],
        position: u32,
        extras: &Extras,
    ) -> bool {
        let mut family = self.records.children(parent).take(COMPARED_MAX);
        family.any(|block| self.tokens(block) == tokens && !self.has_extras(block, position, extras))
    }

    /// True if a block has these tokens and extras.
    #[inline]
    fn holds(&self, block: u32, tokens: &[u32], position: u32, extras: &Extras) -> bool {
        self.tokens(block) == tokens && self.has_extras(block, position, extras)
    }

    fn has_extras(&self, block: u32, position: u32, extras: &Extras) -> bool {
        if extras.is_empty() && self.extras.is_empty() {
            return true;
        }
        let encoding = self.extras.get(&block).map_or(&[][..], Vec::as_slice);
        extras.is_encoded(self.positions(position), encoding)
    }

    fn positions(&self, position: u32) -> Range<u32> {
        position..position.saturating_add(self.block_size)
    }

    /// Removes a block whose content will change, and its key. If another block with this key waits, it is found
    /// instead. Returns true if the block was indexed.
    pub fn remove(&mut self, block: u32) -> bool {
        let (indexed, gone) = self.take_out(block);
        if let Some(key) = gone {
            self.events.removed(&key);
        }
        indexed
    }

    /// Like `remove`, for a block that is evicted: its key is remembered for a while.
    pub fn evict(&mut self, block: u32) -> bool {
        let (indexed, gone) = self.take_out(block);
        if let Some(key) = gone {
            self.evicted.insert(&key);
            self.events.removed(&key);
        }
        indexed
    }

    /// Removes a block. Returns true if it was indexed, and its key if no other block is found by it now.
    fn take_out(&mut self, block: u32) -> (bool, Option<BlockKey>) {
        let Some(key) = self.records.key(block).copied() else { return (false, None) };
        if !self.is_indexed(block) {
            self.records.remove(block);
            return (false, None);
        }
        let (extras, is_first) = (self.extras.remove(&block), self.firsts.take(block));
        let Some(next) = self.records.pass_on(block) else {
            self.len -= 1;
            return (true, Some(key));
        };
        if let Some(extras) = extras {
            self.extras.insert(next, extras);
        }
        if is_first {
            self.firsts.note(next);
        }
        (true, None)
    }

    /// Removes all blocks and their keys. O(blocks).
    pub fn clear(&mut self) {
        self.records.clear();
        self.extras.clear();
        self.firsts.clear();
        self.evicted.clear();
        self.len = 0;
        self.events.cleared();
    }

    /// True if prompts can find a block.
    pub fn is_indexed(&self, block: u32) -> bool {
        self.records.is_indexed(block)
    }

    /// Number of blocks that prompts can find.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// True if prompts can find no block.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The events that are kept.
    pub fn events(&self) -> &EventLog {
        &self.events
    }

    /// Bytes in use, without tokens, extras and events.
    pub fn bytes(&self) -> usize {
        self.records.bytes() + self.evicted.bytes() + self.roots.bytes() + self.firsts.bytes()
    }

    /// Bytes in use for tokens.
    pub fn token_bytes(&self) -> usize {
        self.tokens.bytes()
    }

    /// Returns an error of the bookkeeping, if any: tables and records must agree both ways. O(blocks).
    pub fn check_invariants(&self) -> Result<(), String> {
        let indexed = self.records.check()?;
        if indexed != self.len {
            return Err(format!("{indexed} blocks are indexed, {} are counted", self.len));
        }
        match self.extras.keys().copied().chain(self.firsts.all()).find(|&block| !self.is_indexed(block)) {
            Some(block) => Err(format!("block {block} has extras or is a first block, and is not indexed")),
            None => Ok(()),
        }
    }
}
