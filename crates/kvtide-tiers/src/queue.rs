//! The offload queue: blocks that wait for the tiers below memory.
//!
//! It is bounded in bytes: a block that would exceed the bound is dropped, so a cache never waits for a tier. While a
//! store is asked which blocks it has, the queue keeps those blocks. Forgotten blocks, and those of a cache that ends,
//! are therefore freed at once, however long the store takes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::entry::StoreKey;
use crate::memory::Block;
use crate::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use crate::tier::{Side, Tier};

/// The most blocks to write in one call, and the most bytes of them.
const BATCH: usize = 64;
const BATCH_BYTES: u64 = 32 << 20;

/// A block that is queued for a tier.
#[derive(Debug)]
struct Queued {
    tier: usize,
    key: StoreKey,
    block: Arc<Block>,
}

/// Blocks of one tier that are written together.
pub(crate) type Batch = Vec<(StoreKey, Arc<Block>)>;

#[derive(Debug, Default)]
struct State {
    queued: VecDeque<Queued>,
    bytes: u64,
    /// The batch of each side whose store is being asked which blocks it has; `None` if that side is idle.
    asked: [Option<Batch>; 2],
    /// True if a block was not queued because its direct store is unreachable.
    is_probing: bool,
    has_ended: bool,
}

/// The offload queue.
#[derive(Debug)]
pub(crate) struct Queue {
    limit: u64,
    state: Mutex<State>,
    changed: Condvar,
}

impl Queue {
    pub fn new(limit: u64) -> Self {
        Queue { limit, state: Mutex::default(), changed: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a block. Returns false if there is no room for it.
    pub fn push(&self, tier: usize, key: StoreKey, block: Arc<Block>) -> bool {
        let mut state = self.state();
        let has_room = state.queued.is_empty() || state.bytes + block.bytes() <= self.limit;
        if has_room && !state.has_ended {
            state.bytes += block.bytes();
            state.queued.push_back(Queued { tier, key, block });
            self.changed.notify_all();
        }
        has_room
    }

    /// Asks the writer thread to probe an unreachable store until it is reachable again.
    pub fn probe(&self) {
        let mut state = self.state();
        if !state.is_probing {
            state.is_probing = true;
            self.changed.notify_all();
        }
    }

    /// Drops all blocks.
    pub fn clear(&self) {
        let mut state = self.state();
        (state.bytes, state.queued, state.is_probing) = (0, VecDeque::new(), false);
        state.asked.iter_mut().flatten().for_each(Batch::clear);
        self.changed.notify_all();
    }

    /// Drops all blocks, and takes no more.
    pub fn end(&self) {
        self.state().has_ended = true;
        self.clear();
    }

    /// True if a block is queued for one of these tiers.
    pub fn has_any(&self, is_one: impl Fn(usize) -> bool) -> bool {
        self.state().queued.iter().any(|queued| is_one(queued.tier))
    }

    /// Waits until all blocks are written, the deadline passes, or the cache ends. Returns true if all are written.
    pub fn drained(&self, deadline: Instant) -> bool {
        let mut state = self.state();
        while !state.queued.is_empty() || state.asked.iter().any(Option::is_some) {
            if state.has_ended {
                return false;
            }
            let Some(left) = deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) else {
                return false;
            };
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Begins the next batch of a side: blocks of one tier, in their order. The queue keeps them while their store is
    /// asked. `None` if the queue has no blocks for that side.
    pub fn begin(&self, side: Side, lower: &[Tier]) -> Option<(usize, Vec<StoreKey>)> {
        let mut state = self.state();
        let first = state.queued.iter().find(|queued| lower[queued.tier].is_of(side)).map(|queued| queued.tier);
        let Some(tier) = first else {
            state.asked[side as usize] = None;
            self.changed.notify_all();
            return None;
        };
        let (mut batch, mut bytes, mut rest) = (Batch::new(), 0, VecDeque::new());
        for queued in std::mem::take(&mut state.queued) {
            let fits = batch.is_empty() || (batch.len() < BATCH && bytes + queued.block.bytes() <= BATCH_BYTES);
            if queued.tier == tier && fits {
                bytes += queued.block.bytes();
                batch.push((queued.key, queued.block));
            } else {
                rest.push_back(queued);
            }
        }
        state.queued = rest;
        state.bytes -= bytes;
        let keys = batch.iter().map(|(key, _)| *key).collect();
        state.asked[side as usize] = Some(batch);
        Some((tier, keys))
    }

    /// Takes the batch of a side; it is empty if it was forgotten meanwhile.
    pub fn take(&self, side: Side) -> Batch {
        self.state().asked[side as usize].as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Waits, on the writer thread, until there may be work. Probes an unreachable store meanwhile, if blocks were
    /// meant for it. Returns false once the cache has ended.
    pub fn rest(&self, lower: &[Tier], probe: impl Fn(&Tier) -> Option<Duration>) -> bool {
        let is_direct = |tier: usize| lower[tier].is_of(Side::Direct);
        let state = self.state();
        if state.has_ended || state.queued.iter().any(|queued| is_direct(queued.tier)) {
            return !state.has_ended;
        }
        if !state.is_probing {
            return !self.changed.wait(state).unwrap_or_else(PoisonError::into_inner).has_ended;
        }
        drop(state);
        let again = lower.iter().filter_map(probe).min();
        let mut state = self.state();
        // Probing ends once all stores are reachable.
        state.is_probing &= again.is_some();
        let has_work = state.queued.iter().any(|queued| is_direct(queued.tier));
        match again {
            Some(pause) if !has_work && !state.has_ended => {
                !self.changed.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner).0.has_ended
            }
            _ => !state.has_ended,
        }
    }
}
