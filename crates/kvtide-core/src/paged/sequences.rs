//! The sequences of a paged cache: which block and slot each token lies in.
//!
//! ```text
//! sequence 7   [ block 2 ][ block 0 ][ block 5 ]     tokens 0..16, 16..32, 32..48 of every layer
//! sequence 8 = fork of 7: the same table             the first write into block 5 gives the writer a copy of it
//! ```
//!
//! A block holds the same tokens of every layer, so a sequence has one table for all of them. A sequence reads the slots below
//! its length that are marked as written; marks go with the block, and a block that others hold too, or that is found by its
//! key, is never written. Writes are in `writing.rs`, copies before them in `copying.rs`, reads in `reading.rs`, drafts in
//! `drafts.rs`, steps in `steps.rs`, snapshots and prefixes in `holding.rs`.
//!
//! Invariants: what the tables hold is what the blocks count; where pages are staged, exactly those are whose slots are marked in
//! part or that a draft filled, or a truncation cut. Dropping or cutting a sequence is O(its blocks), forking it O(1).

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use super::blocks::{Blocks, EvictionPolicy};
use super::chunks::Chunks;
use super::id_hasher::IdHasher;
use super::identity::Identity;
use super::sequence::{Chain, Content, Sequence};
use super::store::Store;
use super::targets::{Named, reserve};
use super::window::Window;
use crate::count::{count, count_positive};
use crate::drafts::Drafts;
use crate::error::{Error, Result};

/// Decides where a paged cache keeps the tokens of its sequences.
#[derive(Debug)]
pub struct PagedPlanner {
    pub(super) store: Store,
    pub(super) chunks: Chunks,
    pub(super) sequences: Vec<Option<Sequence>>,
    free_slots: Vec<u32>,
    pub(super) slots: HashMap<u64, u32, BuildHasherDefault<IdHasher>>,
    /// Which tokens later ones see, where not all.
    pub(super) window: Option<Window>,
    /// Whether pages are staged until they are full.
    pub(super) low_bit: bool,
    next_id: u64,
    /// Counts changes, so that a plan is known to be up to date.
    pub(super) revision: u64,
    pub(super) counters: Counters,
    /// How often everything that was found by its tokens was forgotten.
    pub(super) forgotten: u64,
}

/// What has happened since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Blocks copied because others held them when they were written.
    pub copies: u64,
    /// Tokens that prefixes were asked for.
    pub asked_tokens: u64,
    /// Tokens of them that were found.
    pub found_tokens: u64,
}

impl PagedPlanner {
    /// A cache of `capacity` blocks, each of `block_size` tokens of all layers.
    pub fn new(capacity: u32, block_size: u32, num_layers: u32) -> Result<Self> {
        PagedPlanner::of_blocks(Blocks::new(capacity)?, block_size, num_layers)
    }

    /// The same of these blocks, none of which is in use: they bring the order in which they are evicted.
    pub fn of_blocks(blocks: Blocks, block_size: u32, num_layers: u32) -> Result<Self> {
        let block_size = count_positive("blockSize", block_size.into())?;
        let num_layers = count_positive("numLayers", num_layers.into())?;
        Ok(PagedPlanner {
            store: Store::new(blocks, num_layers, block_size)?,
            chunks: Chunks::default(),
            sequences: Vec::new(),
            free_slots: Vec::new(),
            slots: HashMap::default(),
            window: None,
            low_bit: false,
            next_id: 0,
            revision: 0,
            counters: Counters::default(),
            forgotten: 0,
        })
    }

    /// The same, its pages staged until they are full.
    #[must_use]
    pub fn staging_pages(mut self) -> Self {
        self.low_bit = true;
        self
    }

    /// The same, its blocks evicted in another order. None is in use yet.
    #[must_use]
    pub fn evicting(mut self, policy: Box<dyn EvictionPolicy>) -> Self {
        self.store.blocks = self.store.blocks.with_policy(policy);
        self
    }

    /// The same for layers that see a window: blocks that left it are given back.
    #[must_use]
    pub fn sliding(mut self, window: Window) -> Self {
        self.window = Some(window);
        self
    }

    /// A new, empty sequence. Ids count up from 0 and are never used again.
    pub fn create_sequence(&mut self) -> Result<u64> {
        self.create_sequence_of(Identity::default())
    }

    /// The same, whose tokens are found by others of this identity.
    pub fn create_sequence_of(&mut self, identity: Identity) -> Result<u64> {
        let content = Content {
            table: Default::default(),
            length: 0,
            chain: Chain::new(identity.root, identity.extra, self.forgotten),
            cleared: 0,
        };
        self.reserve_sequence()?;
        Ok(self.add_sequence(content))
    }

    /// A new sequence with the tokens of another, sharing all its blocks; what its drafts hold counts as committed there. Their ids
    /// are those of no prompt: from the first drafted token on, the fork is not found.
    pub fn fork(&mut self, sequence: u64) -> Result<u64> {
        self.reserve_sequence()?;
        self.resting(sequence)?;
        let source = self.slot(sequence)?;
        let content = self.fork_content(source);
        Ok(self.add_sequence(content))
    }

    /// Ends a sequence and gives up its blocks; an open draft or step of it ends as well.
    pub fn drop_sequence(&mut self, sequence: u64) -> Result<()> {
        let slot = self.slots.remove(&sequence).ok_or(Error::SequenceNotFound { sequence })?;
        let dropped = self.sequences[slot as usize].take().expect("a sequence that was found");
        self.free_slots.push(slot);
        self.chunks.release(dropped.content.table, self.store.chain());
        self.changed();
        Ok(())
    }

    /// Gives sequences blocks for so many tokens in total; takes all that are missing, or none.
    pub fn ensure_capacity(&mut self, wanted: &[(u64, u32)]) -> Result<()> {
        let missing = self.missing_blocks(wanted)?;
        self.take_missing(wanted, &missing);
        Ok(())
    }

    /// How many blocks each sequence is short of for so many tokens in total, with memory to count them once they are taken.
    /// Refused where there are not so many.
    pub fn missing_blocks(&mut self, wanted: &[(u64, u32)]) -> Result<Vec<u32>> {
        let mut missing = Vec::new();
        reserve(&mut missing, wanted.len())?;
        let mut named = Named::of(if wanted.len() > 1 { self.sequences.len() } else { 0 })?;
        for &(sequence, tokens) in wanted {
            if wanted.len() > 1 && !named.insert(self.slot(sequence)?) {
                return Err(Error::argument("sequences", sequence, "each sequence once"));
            }
            let blocks = count("tokens", tokens.into())?.div_ceil(self.store.block_size);
            let held = self.sequence(sequence)?.content.table.len();
            missing.push(blocks.saturating_sub(held));
        }
        let all: u64 = missing.iter().map(|&blocks| u64::from(blocks)).sum();
        self.check_available(all)?;
        self.store.reserve(all as usize, 0)?;
        self.chunks.reserve(wanted.len(), all as usize)?;
        Ok(missing)
    }

    /// Takes what [`PagedPlanner::missing_blocks`] answered just before.
    pub fn take_missing(&mut self, wanted: &[(u64, u32)], missing: &[u32]) {
        for (&(sequence, _), &missing) in wanted.iter().zip(missing) {
            let slot = self.slot(sequence).expect("a sequence that was found");
            self.add_blocks(slot, missing);
        }
        self.changed();
    }

    /// What a sequence holds, sharing everything. What is only tried is found by nobody, whoever goes on from it.
    pub(super) fn fork_content(&mut self, slot: u32) -> Content {
        let of = self.sequences[slot as usize].as_ref().expect("a sequence that was found");
        let mut content = self.chunks.fork_content(&of.content);
        content.chain.known = content.chain.known.min(of.committed());
        content
    }

    /// Which tokens later ones see, where not all.
    #[must_use]
    pub fn window(&self) -> Option<Window> {
        self.window
    }

    /// Tokens of a sequence, those of open drafts included; 0 for an unknown one.
    #[must_use]
    pub fn sequence_length(&self, sequence: u64) -> u32 {
        self.sequence(sequence).map_or(0, |of| of.content.length)
    }

    /// Tokens of a sequence that no draft can take back; 0 for an unknown one.
    #[must_use]
    pub fn committed_length(&self, sequence: u64) -> u32 {
        self.sequence(sequence).map_or(0, Sequence::committed)
    }

    /// Slots of a sequence's blocks; 0 for an unknown sequence.
    #[must_use]
    pub fn sequence_capacity(&self, sequence: u64) -> u64 {
        let blocks = self.sequence(sequence).map_or(0, |of| of.content.table.len());
        u64::from(blocks) * u64::from(self.store.block_size)
    }

    /// Sequences that are not dropped.
    #[must_use]
    pub fn num_sequences(&self) -> usize {
        self.slots.len()
    }

    /// Their ids, ascending. O(n log n).
    #[must_use]
    pub fn sequence_ids(&self) -> Vec<u64> {
        let mut ids: Vec<u64> = self.slots.keys().copied().collect();
        ids.sort_unstable();
        ids
    }

    /// Makes room for one more sequence.
    pub(super) fn reserve_sequence(&mut self) -> Result<()> {
        let count = self.slots.len() as u64 + 1;
        let refused = || Error::OutOfMemory { count, what: "sequences" };
        self.slots.try_reserve(1).map_err(|_| refused())?;
        if self.free_slots.is_empty() {
            self.sequences.try_reserve(1).map_err(|_| refused())?;
            self.free_slots.try_reserve(self.sequences.len() + 1).map_err(|_| refused())?;
        }
        Ok(())
    }

    /// Adds a sequence; there is room for it.
    pub(super) fn add_sequence(&mut self, content: Content) -> u64 {
        let id = self.next_id;
        let sequence = Some(Sequence {
            id,
            content,
            stepping: None,
            step_parents: Vec::new(),
            drafts: Drafts::default(),
            blocks_before: 0,
            epoch: 0,
        });
        let slot = match self.free_slots.pop() {
            Some(slot) => {
                self.sequences[slot as usize] = sequence;
                slot
            }
            None => {
                self.sequences.push(sequence);
                self.sequences.len() as u32 - 1
            }
        };
        self.slots.insert(id, slot);
        self.next_id += 1;
        id
    }

    /// Takes blocks that are known to be there, with room for them, and adds them to a sequence.
    pub(super) fn add_blocks(&mut self, slot: u32, blocks: u32) {
        for _ in 0..blocks {
            let block = self.store.take();
            let of = self.sequences[slot as usize].as_mut().expect("a sequence that was found");
            self.chunks.push(&mut of.content.table, block, &mut self.store);
        }
    }

    pub(super) fn check_available(&self, needed: u64) -> Result<()> {
        let free = u64::from(self.store.blocks.available());
        if needed > free { Err(Error::OutOfBlocks { needed, free }) } else { Ok(()) }
    }

    /// Notes a change after which a plan from before would come out otherwise.
    pub(super) fn changed(&mut self) {
        self.revision += 1;
    }

    /// Refuses a layer that is not there.
    pub fn check_layer(&self, layer: u32) -> Result<()> {
        if layer < self.store.num_layers {
            return Ok(());
        }
        Err(Error::argument("layer", layer, format!("below {}", self.store.num_layers)))
    }
}
