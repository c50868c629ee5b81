//! One record for each block, and tables of them: by key, by the key of the prefix before, and of blocks that wait for
//! a key.
//!
//! ```text
//! keys       [ 4 ][   ][ 7 ][   ]        first block of each bucket; the next one is in its record
//!              |         |
//!            4 -> 2      7
//! families   [   ][ 2 ]                  the youngest child; 2 <-> 4 <-> 7 have parents of this bucket
//! waiting    h_2: 9                      9 <-> 3 have the key of 4, and are not found while 4 is indexed
//! ```
//!
//! Keys are uniformly random, so their first bits are the bucket. A family can be large (all prompts have the empty
//! prefix as parent), so its list is doubly linked and a block leaves it without a walk. There are no tombstones:
//! removals never make the tables grow. Sequences that compute the same prompt at the same time fill equal blocks: one
//! is indexed, the others wait.
//!
//! Invariants: an indexed block is in the buckets of its key and of its parent, and no other block is in any bucket. A
//! waiting block is not indexed; the key it waits for is, unless only some bits of keys are compared. O(1) expected,
//! `reserve` amortised. A record has 48 bytes; the tables have 6 bytes for each reserved block, and at most half as
//! much again while the pool fills.

use std::collections::HashMap;

use super::key::BlockKey;
use crate::error::{Error, Result};
use crate::paged::per_block::PerBlock;

/// No block; the end of a list.
const NONE: u32 = u32::MAX;
/// In `next`: the block has a key and is not indexed.
const APART: u32 = u32::MAX - 1;
/// In `next`: the block has no key.
const NAMELESS: u32 = u32::MAX - 2;

#[derive(Clone, Copy, Debug)]
struct Record {
    key: BlockKey,
    /// The next block of the bucket, or one of the markers above.
    next: u32,
    /// 32 bits of the parent's key.
    parent: u32,
    /// Neighbours in the family; for a block that is not indexed, neighbours among blocks with the same key.
    younger: u32,
    older: u32,
}

const EMPTY: Record = Record { key: BlockKey([0; 32]), next: NAMELESS, parent: 0, younger: NONE, older: NONE };

#[derive(Debug)]
pub(super) struct Records {
    capacity: u32,
    records: PerBlock<Record>,
    keys: Vec<u32>,
    families: Vec<u32>,
    /// The youngest of the blocks that wait for a key; the others are linked through their records.
    waiting: HashMap<BlockKey, u32>,
    /// The mask of the key bits that are compared, if not all are.
    mask: Option<u64>,
}

/// The bits of a parent's key that its children remember.
fn tag(parent: &BlockKey) -> u32 {
    (parent.short() >> 32) as u32
}

impl Records {
    /// Returns records for blocks below `capacity`. Only the first `key_bits` bits of keys are compared.
    pub(super) fn new(capacity: u32, key_bits: u32) -> Self {
        let mask = (key_bits < 64).then(|| !(u64::MAX >> key_bits));
        let (keys, families, waiting) = (Vec::new(), Vec::new(), HashMap::new());
        Records { capacity, records: PerBlock::new(capacity, 1, EMPTY), keys, families, waiting, mask }
    }

    pub(super) fn reserve(&mut self, block: u32) -> Result<()> {
        self.records.reserve(block)?;
        let rows = self.records.rows() as usize;
        if rows <= self.keys.len() {
            return Ok(());
        }
        let buckets = rows.max(self.keys.len() + self.keys.len() / 2).min(self.capacity as usize);
        let (keys, families) = (empty_table(buckets)?, empty_table(buckets.div_ceil(2))?);
        (self.keys, self.families) = (keys, families);
        for block in 0..self.records.rows() {
            if self.is_indexed(block) {
                self.link(block);
            }
        }
        Ok(())
    }

    pub(super) fn capacity(&self) -> u32 {
        self.capacity
    }

    pub(super) fn rows(&self) -> u32 {
        self.records.rows()
    }

    pub(super) fn is_indexed(&self, block: u32) -> bool {
        block < self.rows() && !matches!(self.records[block].next, APART | NAMELESS)
    }

    pub(super) fn key(&self, block: u32) -> Option<&BlockKey> {
        let record = (block < self.rows()).then(|| &self.records[block])?;
        (record.next != NAMELESS).then_some(&record.key)
    }

    /// The tag of the parent's key, which an indexed block remembers.
    pub(super) fn parent(&self, block: u32) -> BlockKey {
        BlockKey::of_tag(self.records[block].parent)
    }

    /// Gives a key to a block that is not indexed.
    pub(super) fn set_key(&mut self, block: u32, key: &BlockKey) {
        assert!(!self.is_indexed(block), "block {block} is indexed by its key");
        self.remove(block);
        self.records[block] = Record { key: *key, next: APART, ..EMPTY };
    }

    /// Adds a block that has a key to both tables.
    pub(super) fn insert(&mut self, block: u32, parent: &BlockKey) {
        self.records[block].parent = tag(parent);
        self.link(block);
    }

    /// Makes a block that just got its key wait for the indexed block with the same key. Without memory, the block is
    /// never found.
    pub(super) fn wait(&mut self, block: u32) {
        if self.waiting.try_reserve(1).is_err() {
            return;
        }
        if let Some(older) = self.waiting.insert(self.records[block].key, block) {
            self.records[older].younger = block;
            self.records[block].older = older;
        }
    }

    /// Removes a block that is not indexed from the waiting blocks.
    fn leave(&mut self, block: u32) {
        let Record { key, younger, older, .. } = self.records[block];
        if younger != NONE {
            self.records[younger].older = older;
        }
        if older != NONE {
            self.records[older].younger = younger;
        }
        if self.waiting.get(&key) == Some(&block) {
            match older {
                NONE => self.waiting.remove(&key),
                older => self.waiting.insert(key, older),
            };
        }
    }

    /// Removes an indexed block, and indexes the youngest block that waits for its key instead, if any.
    pub(super) fn pass_on(&mut self, block: u32) -> Option<u32> {
        let Record { key, parent, .. } = self.records[block];
        self.remove(block);
        let next = *self.waiting.get(&key)?;
        self.leave(next);
        self.records[next].parent = parent;
        self.link(next);
        Some(next)
    }

    pub(super) fn clear(&mut self) {
        (0..self.rows()).for_each(|block| self.remove(block));
    }

    /// Removes a block from all tables, and its key.
    pub(super) fn remove(&mut self, block: u32) {
        match self.records[block].next {
            NAMELESS => return,
            APART => self.leave(block),
            _ => self.unlink(block),
        }
        self.records[block] = EMPTY;
    }

    /// The first block of a key's bucket, for [`Records::resolve`].
    #[inline]
    pub(super) fn first(&self, key: &BlockKey) -> u32 {
        self.keys.get(self.key_bucket(key)).copied().unwrap_or(NONE)
    }

    /// The block with a key and parent, from the first block of its bucket on.
    #[inline]
    pub(super) fn resolve(&self, first: u32, key: &BlockKey, parent: &BlockKey) -> Option<u32> {
        let mut block = first;
        while block != NONE {
            let record = &self.records[block];
            if self.is_same(&record.key, key) {
                return (record.parent == tag(parent)).then_some(block);
            }
            block = record.next;
        }
        None
    }

    /// True if an indexed block has this key.
    pub(super) fn contains(&self, key: &BlockKey) -> bool {
        let mut block = self.first(key);
        while block != NONE && !self.is_same(&self.records[block].key, key) {
            block = self.records[block].next;
        }
        block != NONE
    }

    /// The indexed blocks that may be children of a prefix, mixed with others of the bucket: last indexed ones first,
    /// or, if the tables have grown since, those with the highest number first.
    pub(super) fn family(&self, parent: &BlockKey) -> impl Iterator<Item = u32> {
        let first = self.families.get(self.family_bucket(tag(parent))).copied().unwrap_or(NONE);
        let follow = |block: u32| (block != NONE).then_some(block);
        std::iter::successors(follow(first), move |&block| follow(self.records[block].older))
    }

    /// Like `family`, without the others, as far as 32 bits of the parent's key distinguish them.
    pub(super) fn children(&self, parent: &BlockKey) -> impl Iterator<Item = u32> {
        let parent_tag = tag(parent);
        self.family(parent).filter(move |&block| self.records[block].parent == parent_tag)
    }

    pub(super) fn bytes(&self) -> usize {
        self.records.bytes() + (self.keys.capacity() + self.families.capacity()) * size_of::<u32>()
    }

    fn is_same(&self, a: &BlockKey, b: &BlockKey) -> bool {
        match self.mask {
            None => a == b,
            Some(mask) => (a.short() ^ b.short()) & mask == 0,
        }
    }

    #[inline]
    fn key_bucket(&self, key: &BlockKey) -> usize {
        let bits = key.short() & self.mask.unwrap_or(u64::MAX);
        ((u128::from(bits) * self.keys.len() as u128) >> 64) as usize
    }

    #[inline]
    fn family_bucket(&self, tag: u32) -> usize {
        ((u64::from(tag) * self.families.len() as u64) >> 32) as usize
    }

    fn link(&mut self, block: u32) {
        let record = self.records[block];
        let (bucket, family) = (self.key_bucket(&record.key), self.family_bucket(record.parent));
        let next = std::mem::replace(&mut self.keys[bucket], block);
        let older = std::mem::replace(&mut self.families[family], block);
        if older != NONE {
            self.records[older].younger = block;
        }
        self.records[block] = Record { next, older, younger: NONE, ..record };
    }

    fn unlink(&mut self, block: u32) {
        let Record { key, next, parent, younger, older } = self.records[block];
        let bucket = self.key_bucket(&key);
        if self.keys[bucket] == block {
            self.keys[bucket] = next;
        } else {
            let mut before = self.keys[bucket];
            while self.records[before].next != block {
                before = self.records[before].next;
            }
            self.records[before].next = next;
        }
        match younger {
            NONE => {
                let family = self.family_bucket(parent);
                self.families[family] = older;
            }
            younger => self.records[younger].older = older,
        }
        if older != NONE {
            self.records[older].younger = younger;
        }
    }

    /// Returns the number of indexed blocks, or an error if tables and records do not agree both ways. O(blocks).
    pub(super) fn check(&self) -> Result<u32, String> {
        let indexed = (0..self.rows()).filter(|&block| self.is_indexed(block)).count() as u32;
        let mut met = 0;
        for (bucket, &first) in self.keys.iter().enumerate() {
            let mut block = first;
            while block != NONE {
                met += 1;
                if !self.is_indexed(block) || self.key_bucket(&self.records[block].key) != bucket || met > indexed {
                    return Err(format!("block {block} does not belong in bucket {bucket}"));
                }
                block = self.records[block].next;
            }
        }
        let mut children = 0;
        for (bucket, &first) in self.families.iter().enumerate() {
            let (mut block, mut younger) = (first, NONE);
            while block != NONE {
                let record = &self.records[block];
                children += 1;
                let belongs = self.is_indexed(block) && self.family_bucket(record.parent) == bucket;
                if !belongs || record.younger != younger || children > indexed {
                    return Err(format!("block {block} does not belong in family {bucket}, behind {younger}"));
                }
                (younger, block) = (block, record.older);
            }
        }
        if (met, children) != (indexed, indexed) {
            return Err(format!("{indexed} blocks are indexed, {met} by key and {children} by parent"));
        }
        self.check_waiting()?;
        Ok(indexed)
    }

    fn check_waiting(&self) -> Result<(), String> {
        for (key, &youngest) in &self.waiting {
            if !self.contains(key) && self.mask.is_none() {
                return Err(format!("block {youngest} waits for a key that is not indexed"));
            }
            let (mut block, mut before, mut met) = (youngest, NONE, 0);
            while block != NONE {
                met += 1;
                let belongs = !self.is_indexed(block) && self.key(block) == Some(key) && met <= self.rows();
                let Record { younger, older, .. } = self.records[block];
                if !belongs || younger != before {
                    return Err(format!("block {block} does not belong among those that wait with block {youngest}"));
                }
                (block, before) = (older, block);
            }
        }
        Ok(())
    }
}

fn empty_table(buckets: usize) -> Result<Vec<u32>> {
    let mut table = Vec::new();
    let out_of_memory = |_| Error::OutOfMemory { count: buckets as u64, what: "buckets of the prefix index" };
    table.try_reserve_exact(buckets).map_err(out_of_memory)?;
    table.resize(buckets, NONE);
    Ok(table)
}
