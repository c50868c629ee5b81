//! Blocks that wait to be written to the lower tiers, and the thread that does so.
//!
//! Bounded by bytes: what comes while it is full is not written, so that nobody ever waits for a tier.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kvtide_core::paged::BlockKey;

use super::counts::Counts;
use super::lower::Lower;
use super::memory::Block;
use super::told::Told;
use crate::entry::StoreKey;

/// Blocks that are written in one call at most, and their bytes.
const BATCH: usize = 64;
const BATCH_BYTES: u64 = 32 << 20;

/// How long one call to a store may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long the question may take whether a store is there again, and how long to wait at least before the next one.
const ASK_PATIENCE: Duration = Duration::from_secs(3);
const ASK_PAUSE: Duration = Duration::from_millis(10);

/// A block on its way to a tier.
#[derive(Debug)]
struct Waiting {
    tier: usize,
    key: StoreKey,
    block: Arc<Block>,
}

/// Blocks of one tier that are written together.
type Batch = Vec<(StoreKey, Arc<Block>)>;

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Waiting>,
    bytes: u64,
    is_busy: bool,
    /// Whether something was to go to a store that cannot be reached.
    is_asking: bool,
    has_ended: bool,
}

/// The queue.
#[derive(Debug)]
pub(super) struct Mover {
    limit: u64,
    state: Mutex<State>,
    changed: Condvar,
}

impl Mover {
    pub fn new(limit: u64) -> Self {
        Mover { limit, state: Mutex::default(), changed: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a block of so many bytes may wait.
    pub fn has_room(&self, bytes: u64) -> bool {
        let state = self.state();
        state.waiting.is_empty() || state.bytes + bytes <= self.limit
    }

    pub fn push(&self, tier: usize, key: StoreKey, block: Arc<Block>) {
        let mut state = self.state();
        state.bytes += block.bytes();
        state.waiting.push_back(Waiting { tier, key, block });
        self.changed.notify_all();
    }

    /// Finds out, on the thread that writes, when a store that cannot be reached is there again.
    pub fn ask(&self) {
        let mut state = self.state();
        if !state.is_asking {
            state.is_asking = true;
            self.changed.notify_all();
        }
    }

    /// Lets go of all that waits.
    pub fn clear(&self) {
        let mut state = self.state();
        (state.bytes, state.waiting, state.is_asking) = (0, VecDeque::new(), false);
        self.changed.notify_all();
    }

    pub fn end(&self) {
        self.state().has_ended = true;
        self.changed.notify_all();
    }

    /// Waits until all was written, or the deadline is there. Blocks that the caller has to take count as well.
    pub fn drained(&self, deadline: Instant) -> bool {
        let mut state = self.state();
        while !state.waiting.is_empty() || state.is_busy {
            let Some(left) = deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) else {
                return false;
            };
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Blocks of one tier, in their order, as many as go together; `is_ours` says which tiers count.
    fn take(state: &mut State, is_ours: impl Fn(usize) -> bool) -> Option<(usize, Batch)> {
        let first = state.waiting.iter().position(|waiting| is_ours(waiting.tier))?;
        let tier = state.waiting[first].tier;
        let (mut batch, mut bytes, mut rest) = (Vec::new(), 0, VecDeque::new());
        for waiting in std::mem::take(&mut state.waiting) {
            let fits = batch.is_empty() || (batch.len() < BATCH && bytes + waiting.block.bytes() <= BATCH_BYTES);
            if waiting.tier == tier && fits {
                bytes += waiting.block.bytes();
                batch.push((waiting.key, waiting.block));
            } else {
                rest.push_back(waiting);
            }
        }
        state.waiting = rest;
        state.bytes -= bytes;
        Some((tier, batch))
    }

    /// Blocks that wait for a tier that only the caller reaches.
    pub fn take_of(&self, tier: usize) -> Batch {
        let taken = Self::take(&mut self.state(), |of| of == tier);
        self.changed.notify_all();
        taken.map(|(_, batch)| batch).unwrap_or_default()
    }

    /// Writes what waits, until it has ended.
    pub fn run(&self, lower: &[Lower], form: &[u8; 32], told: &Told) {
        let is_ours = |tier: usize| lower[tier].store().is_some();
        lower.iter().filter_map(Lower::store).for_each(|store| store.begin());
        let mut state = self.state();
        loop {
            if state.has_ended {
                return;
            }
            let Some((tier, batch)) = Self::take(&mut state, is_ours) else {
                state.is_busy = false;
                self.changed.notify_all();
                state = self.rest(state, lower);
                continue;
            };
            state.is_busy = true;
            drop(state);
            write(&lower[tier], batch, form, |key, tokens| match tokens {
                Some(tokens) => told.stored(tier + 1, key, tokens),
                None => told.removed(tier + 1, key),
            });
            state = self.state();
        }
    }

    /// Waits until something may have changed. A store that was to get something and cannot be reached is asked meanwhile.
    fn rest<'a>(&'a self, state: MutexGuard<'a, State>, lower: &[Lower]) -> MutexGuard<'a, State> {
        if !state.is_asking {
            return self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        let again = lower.iter().filter_map(ask).min();
        let mut state = self.state();
        // Unless nothing is to go there any more.
        state.is_asking &= again.is_some();
        let has_work = state.waiting.iter().any(|waiting| lower[waiting.tier].store().is_some());
        match again {
            Some(pause) if !has_work && !state.has_ended => {
                self.changed.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner).0
            }
            _ => state,
        }
    }
}

/// Asks a store that cannot be reached whether it is there again, once that is worth a question. Answers when to ask next, if it is not.
fn ask(lower: &Lower) -> Option<Duration> {
    let store = lower.store()?;
    if store.unavailable_for()?.is_zero() {
        // A key of no block.
        store.has_many(&[StoreKey { block: BlockKey([0; 32]), group: 0 }], Instant::now() + ASK_PATIENCE);
    }
    store.unavailable_for().map(|pause| pause.max(ASK_PAUSE))
}

fn write(lower: &Lower, batch: Batch, form: &[u8; 32], tell: impl Fn(&StoreKey, Option<&[u32]>)) {
    let Some(store) = lower.store() else { return };
    let deadline = Instant::now() + PATIENCE;
    let keys: Vec<StoreKey> = batch.iter().map(|(key, _)| *key).collect();
    let there = store.has_many(&keys, deadline);
    if store.unavailable_for().is_some() {
        // Entries would be made for nothing.
        Counts::add(&lower.counts.dropped, keys.len());
        return lower.unnote(&keys);
    }
    let new = batch.iter().zip(there.iter().chain(std::iter::repeat(&false))).filter(|(_, is_there)| !**is_there);
    let entries: Vec<(StoreKey, Vec<u8>)> =
        new.filter_map(|((key, block), _)| Some((*key, block.encode(key, form)?))).collect();
    let stored = match entries.is_empty() {
        true => 0,
        false => store.put_many(&entries, deadline).min(entries.len()),
    };
    Counts::add(&lower.counts.stored, stored);
    Counts::add(&lower.counts.dropped, entries.len() - stored);
    if stored < entries.len() {
        // Which of them is not said: all may come again.
        lower.unnote(&keys);
    } else {
        batch.iter().for_each(|(key, block)| tell(key, Some(&block.tokens)));
    }
    store.take_removed().iter().for_each(|key| tell(key, None));
}
