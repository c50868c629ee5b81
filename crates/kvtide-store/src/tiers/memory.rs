//! Blocks in the host's memory: those that were used longest ago make room.
//!
//! A block is shared with whoever writes it elsewhere or reads it. O(log blocks) a call.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kvtide_core::paged::{BlockKey, BlockName};
use kvtide_tensor::Lease;

use crate::entry::{Entry, StoreKey, encode};

/// A block that has left its cache.
#[derive(Debug)]
pub(super) struct Block {
    pub parent: BlockKey,
    pub tokens: Vec<u32>,
    pub extras: Vec<u8>,
    /// Its bytes, all layers of its group.
    pub page: Vec<u8>,
    /// Counts them where memory is limited.
    pub lease: Lease,
}

impl Block {
    pub fn bytes(&self) -> u64 {
        self.lease.bytes()
    }

    fn name(&self, key: BlockKey) -> BlockName<'_> {
        BlockName { key, parent: self.parent, tokens: &self.tokens, extras: &self.extras }
    }

    /// Whether it is what a prompt asks for; of the parent as much as is known counts.
    pub fn is(&self, name: &BlockName<'_>) -> bool {
        let parent = self.parent.tag() == name.parent.tag();
        parent && self.tokens == name.tokens && self.extras == name.extras
    }

    /// As a store has it.
    pub fn encode(&self, key: &StoreKey, form: &[u8; 32]) -> Option<Vec<u8>> {
        encode(&Entry { name: self.name(key.block), form, page: &self.page })
    }
}

/// The tier in memory.
#[derive(Debug)]
pub(super) struct Memory {
    limit: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    blocks: HashMap<StoreKey, (Arc<Block>, u64)>,
    /// By the time of their last use.
    order: BTreeMap<u64, StoreKey>,
    time: u64,
    bytes: u64,
}

impl Memory {
    pub fn new(limit: u64) -> Self {
        Memory { limit, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a block is there, which counts as a use of it.
    pub fn contains(&self, key: &StoreKey) -> bool {
        self.get(key).is_some()
    }

    /// A block, which is used now.
    pub fn get(&self, key: &StoreKey) -> Option<Arc<Block>> {
        self.state().used(key)
    }

    /// Adds a block. Answers those that made room for it, the longest unused first; it itself where it is larger than the tier.
    pub fn put(&self, key: StoreKey, block: Arc<Block>) -> Vec<(StoreKey, Arc<Block>)> {
        let mut state = self.state();
        if state.used(&key).is_some() {
            return Vec::new();
        }
        let time = state.tick();
        state.bytes += block.bytes();
        state.order.insert(time, key);
        state.blocks.insert(key, (block, time));
        let mut gone = Vec::new();
        while state.bytes > self.limit
            && let Some((_, key)) = state.order.pop_first()
        {
            let (block, _) = state.blocks.remove(&key).expect("a block for each time");
            state.bytes -= block.bytes();
            gone.push((key, block));
        }
        gone
    }

    pub fn clear(&self) {
        let time = self.state().time;
        *self.state() = State { time, ..State::default() };
    }

    /// How many blocks there are, and their bytes.
    pub fn usage(&self) -> (u64, u64) {
        let state = self.state();
        (state.blocks.len() as u64, state.bytes)
    }
}

impl State {
    fn tick(&mut self) -> u64 {
        self.time += 1;
        self.time
    }

    fn used(&mut self, key: &StoreKey) -> Option<Arc<Block>> {
        let now = self.tick();
        let (block, time) = self.blocks.get_mut(key)?;
        self.order.remove(time);
        self.order.insert(now, *key);
        *time = now;
        Some(block.clone())
    }
}
