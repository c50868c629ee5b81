//! The state after a sequence's tokens: one slot, held at the place of the last token.
//!
//! ```text
//! tokens        [ block 0 ][ block 1 ][ block 2 ][ bl
//! table             -          -          -      slot 7      the state after all tokens
//! checkpoints                          slot 4                the key of block 2; found by prompts, not held
//! ```
//!
//! A slot is never written again: a step replaces it by another one. If a step ends at the end of a block and all ids are
//! known, its slot gets the key of that block and becomes a checkpoint. Ids of the last, incomplete block are copied from
//! slot to slot, because its key needs them.

use std::ops::Range;
use std::sync::Arc;

use super::{Content, KeyChain};
use crate::error::{Result, reserve};
use crate::paged::index::BlockKey;
use crate::paged::pool::PagePool;
use crate::paged::table::{Table, Tables};

/// A checkpoint that a sequence has left behind or was found by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// Number of tokens before it.
    length: u32,
    /// Its key, and that of the block before.
    key: BlockKey,
    parent: BlockKey,
    /// The slot, and how often it had lost its key.
    slot: u32,
    losses: u32,
    /// True if the next checkpoint replaces it: tokens come one by one.
    is_rolling: bool,
}

impl Content {
    /// Keeps a state instead of tokens.
    pub fn keeping_states(mut self) -> Self {
        self.checkpoints = Some(Arc::default());
        self
    }

    pub fn keeps_states(&self) -> bool {
        self.checkpoints.is_some()
    }

    /// The slot of the state after all tokens.
    pub fn state(&self, tables: &Tables) -> Option<u32> {
        tables.get(&self.table, self.length.checked_sub(1)? / tables.block_size())
    }

    /// Reserves memory for one more checkpoint, and forgets those behind the last token: a cut leaves them in a list that
    /// forks share, and the tokens that follow may be others.
    pub fn reserve_checkpoint(&mut self) -> Result<()> {
        let Some(shared) = &mut self.checkpoints else { return Ok(()) };
        let there = shared.partition_point(|at| at.length <= self.length);
        if let Some(own) = Arc::get_mut(shared) {
            own.truncate(there);
            return reserve(own, 1, "checkpoints of a sequence");
        }
        let mut own = Vec::new();
        reserve(&mut own, there + 1, "checkpoints of a sequence")?;
        own.extend_from_slice(&shared[..there]);
        *shared = Arc::new(own);
        Ok(())
    }

    /// Continues with the state in a slot after `tokens` more tokens, whose ids may be known.
    pub fn step_state(&mut self, slot: u32, tokens: u32, ids: Option<&[u32]>, tables: &mut Tables) {
        let kept = self.length % tables.block_size();
        if let Some(ids) = ids.filter(|_| self.keys.known() == self.length) {
            if let Some(before) = self.state(tables).filter(|_| kept > 0) {
                tables.pool_mut().copy_ids(before, slot, kept);
            }
            self.keys.walk(slot, kept, ids, tables.pool_mut());
        }
        self.length += tokens;
        self.hold_state(slot, tables);
    }

    /// Makes a slot that is in use, or cached, the state after all tokens.
    fn hold_state(&mut self, slot: u32, tables: &mut Tables) {
        let last = (self.length - 1) / tables.block_size();
        let mut table = Table::default();
        tables.lengthen(&mut table, last);
        tables.add(&mut table, Some(slot));
        tables.release(std::mem::replace(&mut self.table, table));
        self.cleared = last;
    }

    /// Gives the state its key, if it is at the end of a block and all ids are known. A rolling checkpoint replaces the
    /// rolling one before it. Memory for the checkpoint is reserved.
    pub fn name_state(&mut self, is_rolling: bool, tables: &mut Tables) {
        let (size, length) = (tables.block_size(), self.length);
        let Some(slot) = self.state(tables).filter(|_| length.is_multiple_of(size)) else { return };
        if self.keys.known() != length || self.keys.keyed() * size != length || !tables.pool().is_sealed(slot) {
            return;
        }
        let (key, parent) = self.keys.last_two();
        let named = tables.pool().index().key(slot);
        if named.is_some_and(|own| *own != key) {
            return;
        }
        let is_new = named.is_none();
        tables.pool_mut().name(slot, &key, &parent, length - size, &self.keys.extra);
        tables.pool_mut().note_end(slot, length);
        let losses = tables.pool().losses(slot);
        let Some(checkpoints) = self.checkpoints.as_mut().and_then(Arc::get_mut) else { return };
        if checkpoints.last().is_some_and(|last| last.length >= length) {
            return;
        }
        if let Some(before) = checkpoints.pop_if(|before| is_rolling && before.is_rolling) {
            tables.pool_mut().drop_cached(before.slot, before.losses);
        }
        let before = checkpoints.last().map_or(0, |before| before.length);
        // Prompts that found it have been counted.
        if is_new {
            tables.pool_mut().note_use(slot, length - before, 1);
        }
        checkpoints.push(Checkpoint { length, key, parent, slot, losses, is_rolling });
    }

    /// Notes the checkpoint that a prompt was found by: the state after all tokens.
    pub fn note_found(&mut self, tables: &mut Tables) {
        if self.reserve_checkpoint().is_ok() {
            self.name_state(false, tables);
        }
    }

    /// The slot of a checkpoint, if it is still there.
    fn slot_of(&self, checkpoint: &Checkpoint, tables: &Tables) -> Option<u32> {
        tables.pool().index().block_of(&checkpoint.key, &checkpoint.parent)
    }

    /// The checkpoints that are still there, the deepest first.
    fn checkpoints<'a>(&'a self, tables: &'a Tables) -> impl Iterator<Item = (&'a Checkpoint, u32)> {
        let all = self.checkpoints.iter().flat_map(|all| all.iter().rev()).filter(|at| at.length <= self.length);
        all.filter_map(|checkpoint| Some((checkpoint, self.slot_of(checkpoint, tables)?)))
    }

    /// The lengths at which there is a checkpoint of these tokens, the greatest first.
    pub fn checkpoint_lengths<'a>(&'a self, tables: &'a Tables) -> impl Iterator<Item = u32> {
        self.checkpoints(tables).map(|(at, _)| at.length)
    }

    /// The slots of the states after a token of one of these blocks: its own, and checkpoints that are still there.
    pub fn states_at<'a>(&'a self, places: Range<u32>, tables: &'a Tables) -> impl Iterator<Item = u32> + 'a {
        let size = tables.block_size();
        let own = self.state(tables).map(|slot| (self.length, slot));
        let before = self.checkpoints(tables).map(|(at, slot)| (at.length, slot)).filter(|&(at, _)| at < self.length);
        own.into_iter().chain(before).filter(move |&(at, _)| places.contains(&((at - 1) / size))).map(|(_, slot)| slot)
    }

    /// The greatest length up to `length` at which there is a state.
    pub fn state_below(&self, length: u32, tables: &Tables) -> u32 {
        if length >= self.length {
            return self.length;
        }
        self.checkpoints(tables).map(|(at, _)| at.length).find(|&at| at <= length).unwrap_or(0)
    }

    /// The least length from `length` on at which there is a state.
    pub fn state_above(&self, length: u32, tables: &Tables) -> Option<u32> {
        let there = self.checkpoints(tables).map(|(at, _)| at.length).filter(|&at| at >= length);
        there.min().or(Some(self.length)).filter(|&at| at >= length)
    }

    /// Goes back to a length at which there is a state.
    pub fn cut_state(&mut self, length: u32, tables: &mut Tables) {
        if length == self.length {
            return;
        }
        let found = self.checkpoints(tables).find(|(at, _)| at.length == length).map(|(at, slot)| (*at, slot));
        self.length = length;
        if let Some(checkpoints) = self.checkpoints.as_mut() {
            match Arc::get_mut(checkpoints) {
                Some(own) => own.retain(|at| at.length <= length),
                // Later checkpoints stay in the list of a fork, which needs no memory, until memory for one more is reserved.
                None if length == 0 => *checkpoints = Arc::default(),
                None => {}
            }
        }
        self.keys.nameless = self.keys.nameless.min(length);
        match found {
            Some((at, slot)) => {
                self.hold_state(slot, tables);
                let keyed = length / tables.block_size();
                self.keys.go_to(length, keyed, at.key, (keyed > 1).then_some(at.parent));
            }
            None => {
                self.keys.forget();
                self.cleared = 0;
                tables.release(std::mem::take(&mut self.table));
            }
        }
    }

    /// The longest common part of the tokens and `tokens` at which there is a state. O(tokens).
    pub fn common_state(&self, tokens: &[u32], tables: &Tables) -> u32 {
        let size = tables.block_size() as usize;
        let (mut key, mut reached) = (self.keys.root, 0);
        let full = (self.keys.keyed() as usize * size).min(tokens.len());
        for (position, block) in (0..).step_by(size).zip(tokens[..full].chunks_exact(size)) {
            key = key.child(block, position, &self.keys.extra);
            let end = position + size as u32;
            let is_here = |at: &Checkpoint| at.length == end && at.key == key && self.slot_of(at, tables).is_some();
            if end <= self.length && self.checkpoints.iter().any(|all| all.iter().any(is_here)) {
                reached = end;
            }
        }
        let length = self.length as usize;
        let rest = length % size;
        let is_whole = self.keys.known() == self.length && tokens.len() >= length && key == self.keys.last;
        let ids = |slot| &tables.pool().index().tokens(slot)[..rest];
        match self.state(tables) {
            Some(slot) if is_whole && *ids(slot) == tokens[length - rest..length] => self.length,
            _ => reached,
        }
    }

    /// Records the ids of all tokens, if none of them are known and the state belongs to this sequence alone. Returns the
    /// number of known ids.
    pub fn identify_state(&mut self, tokens: &[u32], tables: &mut Tables) -> u32 {
        let (size, length) = (tables.block_size(), self.length as usize);
        let Some(slot) = self.state(tables) else { return 0 };
        let place = (self.length - 1) / size;
        let is_own = !tables.is_seen(&self.table, place);
        if self.keys.known() == 0 && self.keys.can_learn() && tokens.len() >= length && is_own {
            self.keys.walk(slot, 0, &tokens[..length], tables.pool_mut());
            self.name_state(false, tables);
        }
        self.keys.known()
    }
}

impl KeyChain {
    /// Records ids behind the known ones in a slot, whose first `kept` ids are those of the last, incomplete block.
    fn walk(&mut self, slot: u32, kept: u32, ids: &[u32], pool: &mut PagePool) {
        let size = pool.block_size();
        let (mut at, mut rest) = (kept, ids);
        while !rest.is_empty() {
            let (now, later) = rest.split_at(((size - at) as usize).min(rest.len()));
            pool.set_tokens(slot, at, now);
            (at, rest) = ((at + now.len() as u32) % size, later);
            if at == 0 {
                self.passed = (self.keyed > 0).then_some(self.last);
                self.last = self.last.child(pool.index().tokens(slot), self.keyed * size, &self.extra);
                self.keyed += 1;
            }
        }
        self.known += ids.len() as u32;
        if at > 0 && self.keyed > 0 {
            self.passed = Some(self.last);
        }
    }

    /// The keys of the last full block and of the one before it, for tokens that end at the end of a block.
    fn last_two(&self) -> (BlockKey, BlockKey) {
        (self.last, self.passed.unwrap_or(self.root))
    }

    /// Continues behind `keyed` full blocks.
    fn go_to(&mut self, known: u32, keyed: u32, last: BlockKey, passed: Option<BlockKey>) {
        (self.known, self.keyed, self.last, self.passed) = (known, keyed, last, passed);
    }
}
