//! The memory tier: blocks in the host's memory. The least recently used ones are evicted.
//!
//! A block is shared with the writer that offloads it further and with prompts that restore it. O(log blocks) for each
//! call.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kvtide_core::paged::{BlockKey, BlockName};
use kvtide_tensor::runtime::Lease;

use crate::entry::{Entry, StoreKey, encode};

/// A block that was copied from its cache.
#[derive(Debug)]
pub(crate) struct Block {
    pub parent: BlockKey,
    pub tokens: Vec<u32>,
    pub extras: Vec<u8>,
    /// The bytes of the block, all layers of its group.
    pub page: Vec<u8>,
    /// Counts the bytes towards a memory limit.
    pub lease: Lease,
}

impl Block {
    pub fn bytes(&self) -> u64 {
        self.lease.bytes()
    }

    fn name(&self, key: BlockKey) -> BlockName<'_> {
        BlockName { key, parent: self.parent, tokens: &self.tokens, extras: &self.extras }
    }

    /// True if this is the block that a prompt requested. The parent is compared as far as it is known.
    pub fn is(&self, name: &BlockName<'_>) -> bool {
        let parent = self.parent.tag() == name.parent.tag();
        parent && self.tokens == name.tokens && self.extras == name.extras
    }

    /// Returns the block as an entry.
    pub fn encode(&self, key: &StoreKey, form: &[u8; 32]) -> Option<Vec<u8>> {
        encode(&Entry { name: self.name(key.block), group: key.group, form, page: &self.page })
    }
}

/// The memory tier.
#[derive(Debug)]
pub(crate) struct Memory {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    limit: u64,
    blocks: HashMap<StoreKey, (Arc<Block>, u64)>,
    /// The keys by the time of their last use.
    order: BTreeMap<u64, StoreKey>,
    time: u64,
    bytes: u64,
}

impl Memory {
    pub fn new(limit: u64) -> Self {
        Memory { state: Mutex::new(State { limit, ..State::default() }) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if the tier has a block. Counts as a use of it.
    pub fn contains(&self, key: &StoreKey) -> bool {
        self.get(key).is_some()
    }

    /// Returns a block. Counts as a use of it.
    pub fn get(&self, key: &StoreKey) -> Option<Arc<Block>> {
        self.state().used(key)
    }

    /// Adds a block. Returns the evicted blocks, the least recently used first; the block itself if it is larger than
    /// the tier.
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
        while state.bytes > state.limit
            && let Some((_, key)) = state.order.pop_first()
        {
            let (block, _) = state.blocks.remove(&key).expect("a block for each time");
            state.bytes -= block.bytes();
            gone.push((key, block));
        }
        gone
    }

    pub fn clear(&self) {
        let mut state = self.state();
        let State { limit, time, .. } = *state;
        *state = State { limit, time, ..State::default() };
    }

    /// Frees all blocks, and takes no more.
    pub fn end(&self) {
        *self.state() = State::default();
    }

    /// Returns the number of blocks, and their bytes.
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
