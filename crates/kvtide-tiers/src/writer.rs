//! Writes queued blocks to the stores of tiers. The writer is a state machine: a thread drives it for stores that this
//! crate calls, and the caller for its own.
//!
//! ```text
//! idle -> has: which blocks exist -> work: encode the others as entries -> put -> idle
//! ```
//!
//! Blocks are encoded only after the store has answered, 32 MiB at most. O(bytes) for each batch.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use kvtide_core::paged::BlockKey;
use kvtide_tensor::runtime::Lease;

use crate::caller::{Answer, Call, Machine, Need};
use crate::entry::{FormTag, StoreKey};
use crate::inner::Inner;
use crate::options::Access;
use crate::policy::{PROBE_PATIENCE, PROBE_PAUSE, WRITE_PATIENCE};
use crate::stats::Counts;
use crate::store::Store;
use crate::tier::{Side, Tier};

/// Writes the blocks that are queued for the stores of one side.
#[derive(Debug)]
pub struct Writer {
    inner: Arc<Inner>,
    side: Side,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Idle,
    /// The store is asked which blocks it has; the queue keeps the blocks.
    Asked {
        at: usize,
        keys: Vec<StoreKey>,
    },
    /// True in `exist` for each block that exists.
    Answered {
        at: usize,
        exist: Vec<bool>,
    },
    /// Entries are ready to be put. Their bytes are counted while they live. They are few, and written even if they
    /// exceed the budget.
    Encoded {
        written: Written,
        entries: Vec<(String, Vec<u8>)>,
    },
    Putting(Written),
}

/// The entries that are being written.
#[derive(Debug)]
struct Written {
    at: usize,
    keys: Vec<StoreKey>,
    /// The tokens of each block.
    tokens: Vec<Vec<u32>>,
    entries: usize,
    _lease: Option<Lease>,
}

impl Writer {
    pub(crate) fn new(inner: Arc<Inner>, side: Side) -> Self {
        Writer { inner, side, stage: Stage::Idle }
    }

    fn tier(&self, at: usize) -> &Tier {
        &self.inner.lower[at]
    }

    /// Begins the next batch, if there is one. A batch for a store that is unreachable by now is dropped.
    fn begin(&mut self) -> Option<Call> {
        loop {
            let (at, keys) = self.inner.queue.begin(self.side, &self.inner.lower)?;
            let tier = self.tier(at);
            if tier.is_worth() {
                let names = tier.entry_names(&keys);
                self.stage = Stage::Asked { at, keys };
                return Some(Call::Has(names));
            }
            tier.lose(&keys);
        }
    }

    /// Encodes the blocks that do not exist yet. Encodes none if they were forgotten meanwhile.
    fn encode(&mut self, at: usize, exist: &[bool]) {
        let batch = self.inner.queue.take(self.side);
        if batch.is_empty() {
            return;
        }
        let inner = self.inner.clone();
        let tier = &inner.lower[at];
        let entry = |key: &StoreKey, bytes: Vec<u8>| {
            let name = tier.entry_name(key);
            let closed = tier.envelope.close(&name, bytes)?;
            Some((name, closed))
        };
        let (mut entries, mut lost) = (Vec::new(), Vec::new());
        let mut written = Written { at, keys: Vec::new(), tokens: Vec::new(), entries: 0, _lease: None };
        for ((key, block), exists) in batch.iter().zip(exist.iter().copied().chain(std::iter::repeat(false))) {
            if !exists {
                match block.encode(key, &inner.form).and_then(|bytes| entry(key, bytes)) {
                    Some(entry) => entries.push(entry),
                    // An entry cannot have its extras, or memory is short.
                    None => {
                        lost.push(*key);
                        continue;
                    }
                }
            }
            written.keys.push(*key);
            written.tokens.push(block.tokens.clone());
        }
        tier.lose(&lost);
        let bytes = entries.iter().map(|(_, bytes): &(String, Vec<u8>)| bytes.len() as u64).sum();
        (written.entries, written._lease) = (entries.len(), inner.budget.take(bytes).ok());
        if entries.is_empty() {
            self.settle(&written, 0);
        } else {
            self.stage = Stage::Encoded { written, entries };
        }
    }

    /// Counts the entries that were written.
    fn settle(&self, written: &Written, stored: usize) {
        let Written { at, keys, tokens, entries, .. } = written;
        let tier = self.tier(*at);
        Counts::add(&tier.counts.stored, stored);
        Counts::add(&tier.counts.dropped, entries - stored);
        if stored < *entries {
            // It is not known which ones are missing, so all may be offloaded again.
            tier.unnote(keys);
        } else {
            keys.iter().zip(tokens).for_each(|(key, tokens)| self.inner.log.stored(at + 1, key, tokens));
        }
        if let Access::Direct(store) = &tier.access {
            store.take_removed().iter().for_each(|key| self.inner.log.removed(at + 1, key));
        }
    }

    /// Writes until the cache has ended, on the thread for stores that this crate calls.
    pub(crate) fn run(mut self) {
        let inner = self.inner.clone();
        let stores = inner.lower.iter().filter_map(direct);
        stores.for_each(|store| store.begin());
        loop {
            match self.advance() {
                Need::Work => self.work(),
                Need::Call(call) => self.make(&call),
                _ if inner.queue.rest(&inner.lower, probe) => {}
                _ => return,
            }
        }
    }

    /// Makes a call on this thread.
    fn make(&mut self, call: &Call) {
        let at = match &self.stage {
            Stage::Asked { at, .. } | Stage::Putting(Written { at, .. }) => *at,
            _ => return,
        };
        let inner = self.inner.clone();
        let Some(store) = direct(&inner.lower[at]) else { return };
        let deadline = Instant::now() + WRITE_PATIENCE;
        match call {
            Call::Has(keys) => self.answer(Answer::Has(&store.has(keys, deadline))),
            Call::Put(entries) => {
                let entries: Vec<(String, &[u8])> =
                    entries.iter().map(|(key, bytes)| (key.clone(), &bytes[..])).collect();
                self.answer(Answer::Stored(store.put(&entries, deadline)));
            }
            Call::Get { .. } | Call::Remove(_) => self.answer(Answer::Miss),
        }
    }
}

impl Machine for Writer {
    fn advance(&mut self) -> Need {
        match std::mem::replace(&mut self.stage, Stage::Idle) {
            // Forgotten blocks are not written.
            Stage::Encoded { written, entries } if !self.inner.is_forgotten() => {
                self.stage = Stage::Putting(written);
                Need::Call(Call::Put(entries))
            }
            stage @ Stage::Answered { .. } => {
                self.stage = stage;
                Need::Work
            }
            _ => self.begin().map_or(Need::Done, Need::Call),
        }
    }

    fn answer(&mut self, answer: Answer<'_>) {
        match std::mem::replace(&mut self.stage, Stage::Idle) {
            Stage::Asked { at, keys } => {
                if self.tier(at).unavailable_for().is_none() {
                    let exist = if let Answer::Has(exist) = answer { exist.to_vec() } else { Vec::new() };
                    self.stage = Stage::Answered { at, exist };
                } else if !self.inner.queue.take(self.side).is_empty() {
                    // The store is unreachable, so entries would be encoded for nothing.
                    self.tier(at).lose(&keys);
                }
            }
            Stage::Putting(written) => {
                let stored = if let Answer::Stored(stored) = answer { stored } else { 0 };
                self.settle(&written, stored.min(written.entries));
            }
            stage => self.stage = stage,
        }
    }

    fn work(&mut self) {
        match std::mem::replace(&mut self.stage, Stage::Idle) {
            Stage::Answered { at, exist } => self.encode(at, &exist),
            stage => self.stage = stage,
        }
    }

    fn patience(&self) -> Option<Duration> {
        Some(WRITE_PATIENCE)
    }
}

fn direct(tier: &Tier) -> Option<&dyn Store> {
    match &tier.access {
        Access::Direct(store) => Some(&**store),
        Access::Caller(_) => None,
    }
}

/// Returns a key that no block has: a cheap question for a probe.
fn no_block() -> String {
    StoreKey { block: BlockKey([0; 32]), group: 0, form: FormTag::default() }.to_string()
}

/// Probes an unreachable store, if it may be asked. Returns the pause before the next probe; `None` if the store is
/// reachable again.
fn probe(tier: &Tier) -> Option<Duration> {
    let store = direct(tier)?;
    if store.unavailable_for()?.is_zero() {
        store.has(&[no_block()], Instant::now() + PROBE_PATIENCE);
    }
    store.unavailable_for().map(|pause| pause.max(PROBE_PAUSE))
}

/// Probes the caller's store, as often as it may be asked, until it answers.
#[derive(Debug)]
pub struct Prober {
    inner: Arc<Inner>,
}

impl Prober {
    pub(crate) fn new(inner: Arc<Inner>) -> Self {
        Prober { inner }
    }
}

impl Machine for Prober {
    fn advance(&mut self) -> Need {
        let is_over = self.inner.is_forgotten() || self.inner.has_ended.load(Ordering::Acquire);
        let tier = self.inner.caller().filter(|_| !is_over).map(|place| &self.inner.lower[place - 1]);
        match tier.and_then(Tier::unavailable_for) {
            None => Need::Done,
            Some(pause) if pause.is_zero() => Need::Call(Call::Has(vec![no_block()])),
            Some(pause) => Need::Pause(pause.max(PROBE_PAUSE)),
        }
    }

    fn answer(&mut self, _: Answer<'_>) {}

    fn work(&mut self) {}

    fn patience(&self) -> Option<Duration> {
        Some(PROBE_PATIENCE)
    }
}
