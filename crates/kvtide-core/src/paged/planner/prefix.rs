//! Prefixes: what of a prompt is in the cache already, and whether there is room for the rest.
//!
//! ```text
//! held = planner.find(tokens, &identity, partial)?     its blocks are held until it is released or made a sequence
//! ```
//!
//! At most all tokens but the last are found, since its logits are needed. With a window, a prefix needs its sinks, what the next
//! token sees and the block of its own last token. O(tokens).

use super::paged_planner::PagedPlanner;
use crate::error::{Result, reserve};
use crate::paged::index::{Explanation, Group, Identity, Key, PrefixMatch, Unseen};
use crate::paged::sequence::Held;

impl PagedPlanner {
    /// The longest prefix of these tokens that is there, its blocks held; with `partial` also the start of a block, which its
    /// first writer gets a copy of, where there is no window.
    pub fn find(&mut self, tokens: &[u32], identity: &Identity, partial: bool) -> Result<Held> {
        let (group, prompt) = ([self.group()], identity.prompt(tokens));
        let mut found = PrefixMatch::find(&group, prompt)?;
        if partial {
            found.add_rest(&group, prompt);
        }
        let held = self.hold_match(&found, 0, identity)?;
        self.count_found(tokens.len(), found.tokens());
        Ok(held)
    }

    /// How far a prompt is found, and why no further.
    pub fn explain(&self, tokens: &[u32], identity: &Identity) -> Result<Explanation> {
        Explanation::new(&[self.group()], identity.prompt(tokens), |_, key, place| self.is_drafted(key, place))
    }

    /// Whether there is room for `tokens` tokens of a new sequence, and `watermark` blocks beside.
    #[must_use]
    pub fn can_allocate(&self, tokens: u32, watermark: u32) -> bool {
        let needed = tokens.div_ceil(self.block_size());
        u64::from(needed) + u64::from(watermark) <= self.free_count().into()
    }

    /// The same for a prompt whose start may be there: blocks that others hold cost nothing, those that nobody holds count.
    pub fn can_allocate_prompt(&self, tokens: &[u32], identity: &Identity, watermark: u32) -> Result<bool> {
        let found = PrefixMatch::find(&[self.group()], identity.prompt(tokens))?;
        Ok(self.has_room_for(&found, 0, tokens.len(), watermark))
    }

    /// The names of the whole blocks of a prompt, whether they are there or not. O(tokens).
    pub fn keys(&self, tokens: &[u32], identity: &Identity) -> Result<Vec<Key>> {
        identity.keys(tokens, self.block_size())
    }

    /// The names of all blocks that can be found, in no order. O(blocks).
    pub fn indexed_keys(&self) -> Result<Vec<Key>> {
        let (index, blocks) = (self.tables.pool().index(), self.tables.pool().blocks().touched());
        let mut keys = Vec::new();
        reserve(&mut keys, index.len() as usize, "sequences and blocks of a call")?;
        keys.extend((0..blocks).filter(|&block| index.is_indexed(block)).filter_map(|block| index.key(block)));
        Ok(keys)
    }

    /// What happened to the blocks that are found by their tokens, from a number on.
    #[must_use]
    pub fn events(&self, since: u64) -> Unseen<'_> {
        self.tables.pool().index().events().since(since)
    }

    /// Keeps the latest `capacity` events from now on.
    pub fn keep_events(&mut self, capacity: u32) {
        self.tables.pool_mut().keep_events(capacity);
    }

    /// Nothing that is there is found by its tokens any more, nor what follows it in a sequence or a snapshot; blocks that nobody
    /// holds are free.
    pub fn forget_prefixes(&mut self) {
        self.tables.pool_mut().forget_prefixes();
        self.forgotten += 1;
        // What follows blocks without keys is found by none.
        self.sequences.iter_mut().for_each(|of| of.forget_before(self.forgotten));
        self.changed();
    }

    /// This planner as a group of layers that is asked.
    pub(super) fn group(&self) -> Group<'_> {
        Group { index: self.tables.pool().index(), window: self.window }
    }

    /// Holds what was found in this planner, of these groups.
    pub(super) fn hold_match(&mut self, found: &PrefixMatch, group: usize, identity: &Identity) -> Result<Held> {
        let blocks = found.blocks(group);
        let names = [found.length().checked_sub(1), blocks.iter().rposition(Option::is_none)];
        let names = names.map(|place| place.map(|place| found.keys()[place]));
        self.hold_named(blocks, found.tokens(), identity, names)
    }

    /// Counts a prompt that was looked for.
    pub(super) fn count_found(&mut self, asked: usize, found: u32) {
        self.counters.asked_tokens += asked as u64;
        self.counters.found_tokens += u64::from(found);
    }

    /// Whether there is room for what a prompt of so many tokens lacks beside what was found in this planner, of these groups.
    pub(super) fn has_room_for(&self, found: &PrefixMatch, group: usize, tokens: usize, watermark: u32) -> bool {
        let blocks = self.tables.pool().blocks();
        let new = (tokens.div_ceil(self.block_size() as usize) - found.length()) as u64;
        let revived = found.blocks(group).iter().flatten().filter(|&&block| blocks.count(block) == 0).count() as u64;
        new + revived + u64::from(watermark) <= blocks.available().into()
    }

    /// Whether a sequence has the block of this key at a place, its tokens known, and it has no key yet. O(sequences), and O(tokens
    /// without a key) of those that have so many.
    pub(super) fn is_drafted(&self, key: &Key, place: u32) -> bool {
        self.sequences.iter().any(|of| of.drafts_block(key, place, &self.tables))
    }
}
