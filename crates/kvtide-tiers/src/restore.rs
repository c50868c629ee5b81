//! Restores the blocks of a prompt from the tiers: a state machine. Threads call the stores that this crate can call;
//! the caller calls its own store.
//!
//! ```text
//! restore   computes the prompt's keys, and finds the missing blocks   on the cache's thread
//! ask       asks the tiers for them, from the highest down             on any thread, until a deadline
//! begin     takes new blocks for those that extend the prefix          on the cache's thread
//! fetch     verifies entries, and writes them into the new blocks      on threads of its own, until a deadline
//! end       makes the restored blocks available to prompts             on the cache's thread
//! ```
//!
//! `advance` returns the next of these steps, or the next call of the caller's store. Stores are asked for pieces of
//! the prompt, in its order. Several threads take pieces: while one waits for a store, another verifies. At the
//! deadline, the cache goes on with the blocks that have arrived. A thread that waits for a store holds no blocks:
//! entries that arrive later are dropped.
//!
//! If prefixes are forgotten between `restore` and `end`, no prompt finds the restored blocks.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use kvtide_core::paged::{BlockName, PromptBlocks};
use kvtide_files::Result;
use kvtide_tensor::{PagedKvCache, PagedPrefix, PromptOptions};

use crate::caller::{Answer, Call, Machine, Need};
use crate::entry::StoreKey;
use crate::fetch::{Row, Work};
use crate::inner::Inner;
use crate::options::Access;
use crate::stats::Counts;
use crate::tiers::Tiers;

/// A set of tiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierSet(u64);

impl TierSet {
    /// All tiers.
    pub const ALL: TierSet = TierSet(u64::MAX);

    /// Returns the tiers at these places. Place 0 is memory, even if the cache has no memory tier.
    #[must_use]
    pub fn of(places: &[u32]) -> Self {
        TierSet(places.iter().filter(|place| **place < 64).fold(0, |set, place| set | 1 << place))
    }

    fn has(self, place: usize) -> bool {
        self.0 >> place & 1 == 1
    }
}

/// A prompt whose blocks are being restored. If it is dropped, new blocks that did not get a key are freed.
#[derive(Debug)]
pub struct Restore {
    inner: Arc<Inner>,
    set: TierSet,
    deadline: Instant,
    blocks: PromptBlocks,
    /// The blocks that the cache lacks, in the prompt's order.
    wanted: Vec<StoreKey>,
    /// The place of the tier that has each block.
    there: HashMap<StoreKey, usize>,
    /// The number of times that prefixes had been forgotten when the prompt was requested.
    since: u64,
    stage: Stage,
    work: Option<Arc<Work>>,
}

#[derive(Debug)]
enum Stage {
    /// The tier at this place is asked next; memory has place 0.
    Ask(usize),
    /// The caller's store is being asked which of these blocks it has.
    Asked(Vec<StoreKey>),
    Begin,
    /// The caller's store is asked for this piece next.
    Fetch(usize),
    Fetching(usize),
    /// The caller's store is asked to remove damaged entries, then for this piece.
    Remove(Vec<StoreKey>, usize),
    Removing(usize),
    /// Threads restore the other pieces.
    Wait,
    Done,
}

impl Tiers {
    /// Begins to restore a prompt from some of the tiers, until the deadline.
    pub fn restore(
        &self,
        cache: &mut PagedKvCache,
        tokens: &[u32],
        options: PromptOptions<'_>,
        set: TierSet,
        deadline: Instant,
    ) -> Result<Restore> {
        let blocks = cache.prompt_blocks(tokens, options)?;
        let mut wanted = Vec::new();
        for place in 0..blocks.len() {
            let missing = (0..blocks.groups()).filter(|&group| blocks.found(group, place).is_none());
            wanted.extend(missing.map(|group| self.inner.key(group, blocks.key(place))));
        }
        let (inner, there, since, stage) = (self.inner.clone(), HashMap::new(), cache.forgotten(), Stage::Ask(0));
        Ok(Restore { inner, set, deadline, blocks, wanted, there, since, stage, work: None })
    }
}

impl Restore {
    /// Sets how often prefixes had been [forgotten](PagedKvCache::forgotten) when the prompt was requested.
    pub fn since(&mut self, forgotten: u64) {
        self.since = self.since.min(forgotten);
    }

    /// Asks the tiers from the highest to the lowest, each for the blocks that no higher tier has. Stops at the
    /// caller's store.
    pub fn ask(&mut self, deadline: Instant) {
        let inner = self.inner.clone();
        while let Some(at) = self.asks() {
            let (tier, keys) = (&inner.lower[at - 1], self.missing());
            let Access::Direct(store) = &tier.access else { return };
            if Instant::now() < deadline {
                self.note(at, &keys, &store.has(&tier.entry_names(&keys), deadline));
            }
            self.stage = Stage::Ask(at + 1);
        }
    }

    /// Returns the place of the tier to ask next.
    fn asks(&mut self) -> Option<usize> {
        while let Stage::Ask(at) = self.stage {
            if at == 0
                && let Some(top) = self.inner.top.as_ref().filter(|_| self.set.has(0))
            {
                let held = self.wanted.iter().filter(|key| top.memory.contains(key));
                self.there.extend(held.map(|key| (*key, 0)));
            }
            if at > self.inner.lower.len() {
                self.stage = if self.is_worth() { Stage::Begin } else { Stage::Done };
            } else if at > 0 && self.set.has(at) && !self.missing().is_empty() {
                return Some(at);
            } else {
                self.stage = Stage::Ask(at + 1);
            }
        }
        None
    }

    /// Returns the blocks that no tier is known to have, in the prompt's order; none once prefixes were forgotten.
    fn missing(&self) -> Vec<StoreKey> {
        if self.inner.is_forgotten() {
            return Vec::new();
        }
        self.wanted.iter().filter(|key| !self.there.contains_key(key)).copied().collect()
    }

    fn note(&mut self, at: usize, keys: &[StoreKey], exist: &[bool]) {
        self.there.extend(keys.iter().zip(exist).filter(|(_, exists)| **exists).map(|(key, _)| (*key, at)));
    }

    /// True if a tier has any of the blocks.
    #[must_use]
    pub fn is_worth(&self) -> bool {
        !self.there.is_empty()
    }

    /// Takes new blocks for those that extend the prefix, as many as there is room for; cached blocks that aren't held
    /// are evicted for them. Takes none if prefixes were forgotten since the prompt was requested.
    ///
    /// If the caller's store has blocks too, threads begin to fetch at once.
    pub fn begin(&mut self, cache: &mut PagedKvCache) -> Result<()> {
        let key = |group: usize, name: &BlockName<'_>| self.inner.key(group, &name.key);
        let there = |group: usize, name: &BlockName<'_>| self.there.contains_key(&key(group, name));
        let returning = cache.begin_return(&self.blocks, self.since, there)?;
        let mut rows = Vec::new();
        for group in 0..returning.blocks().groups() {
            for (row, &place) in returning.places(group).iter().enumerate() {
                let key = key(group, &returning.blocks().name(place));
                rows.push(Row { place, group, row, key, tier: self.there[&key] });
            }
        }
        rows.sort_by_key(|row| row.place);
        let work = Arc::new(Work::new(self.inner.clone(), returning, rows));
        if !work.of_caller.is_empty() && !work.pieces.is_empty() {
            work.start(self.deadline);
        }
        self.work = Some(work);
        self.stage = Stage::Fetch(0);
        Ok(())
    }

    /// Returns the number of blocks of the prefix, if all requested blocks arrive.
    #[must_use]
    pub fn length(&self) -> usize {
        self.work.as_ref().map_or(0, |work| work.returning.length())
    }

    /// Restores blocks from memory and from the stores that this crate calls, until the deadline. Ends at once if
    /// prefixes are forgotten or the tiers end.
    pub fn fetch(&self, deadline: Instant) {
        self.fetcher()(deadline);
    }

    /// As [`Restore::fetch`], for another thread.
    pub fn fetcher(&self) -> impl FnOnce(Instant) + Send + 'static + use<> {
        let work = self.work.clone();
        move |deadline| {
            if let Some(work) = work {
                work.fetch(deadline);
            }
        }
    }

    /// Makes the restored blocks available to prompts. Returns the number of blocks from each tier, by its place; zeros
    /// if prefixes were forgotten since the prompt was requested.
    pub fn end(&mut self, cache: &mut PagedKvCache) -> Result<Vec<u32>> {
        let mut arrived = vec![0; self.inner.lower.len() + 1];
        let Some(work) = &self.work else { return Ok(arrived) };
        let has_named = cache.end_return(&work.returning)? > 0;
        for row in work.arrived().filter(|_| has_named) {
            arrived[row.tier] += 1;
        }
        for (tier, arrived) in arrived.iter().enumerate() {
            if let Some(counts) = work.inner.counts(tier) {
                Counts::add(&counts.found, *arrived as usize);
            }
        }
        (self.work, self.stage) = (None, Stage::Done);
        Ok(arrived)
    }

    /// Returns the longest cached prefix of the prompt by now. Its keys are not computed again.
    pub fn find(&self, cache: &mut PagedKvCache, partial: bool) -> Result<PagedPrefix> {
        Ok(cache.find_named_prefix(&self.blocks, partial)?)
    }

    /// Takes the values of a piece from the caller's store.
    fn receive(&mut self, at: usize, values: &[Option<&[u8]>]) {
        let Some(work) = self.work.clone() else { return };
        let damaged = work.write_all(&work.of_caller[at], values.iter().copied());
        let can_remove = work.inner.caller().is_some_and(|tier| work.inner.lower[tier - 1].can_remove());
        // A store that has nothing of a piece has nothing of the later pieces.
        let next = if values.iter().any(Option::is_some) { at + 1 } else { work.of_caller.len() };
        let is_damaged = !damaged.is_empty();
        if is_damaged && let Some(tier) = work.inner.caller() {
            work.inner.lower[tier - 1].unnote(&damaged);
        }
        self.stage = if is_damaged && can_remove { Stage::Remove(damaged, next) } else { Stage::Fetch(next) };
    }
}

impl Machine for Restore {
    fn advance(&mut self) -> Need {
        if let Some(at) = self.asks() {
            let (keys, tier) = (self.missing(), &self.inner.lower[at - 1]);
            if let Access::Direct(_) = tier.access {
                return Need::Work;
            }
            let names = tier.entry_names(&keys);
            self.stage = Stage::Asked(keys);
            return Need::Call(Call::Has(names));
        }
        loop {
            match std::mem::replace(&mut self.stage, Stage::Done) {
                Stage::Begin => {
                    self.stage = Stage::Begin;
                    return Need::Cache;
                }
                Stage::Fetch(at) => match self.work.as_ref().and_then(|work| Some((work, work.of_caller.get(at)?))) {
                    Some((work, piece)) => {
                        let (keys, bytes_max) = work.asked(piece);
                        self.stage = Stage::Fetching(at);
                        return Need::Call(Call::Get { keys, bytes_max });
                    }
                    None => self.stage = Stage::Wait,
                },
                Stage::Remove(keys, next) => {
                    self.stage = Stage::Removing(next);
                    let tier = self.inner.caller().map(|tier| &self.inner.lower[tier - 1]);
                    return Need::Call(Call::Remove(tier.map(|tier| tier.entry_names(&keys)).unwrap_or_default()));
                }
                Stage::Wait if self.work.as_ref().is_some_and(|work| !work.pieces.is_empty()) => {
                    self.stage = Stage::Wait;
                    return Need::Work;
                }
                _ => return Need::Done,
            }
        }
    }

    fn answer(&mut self, answer: Answer<'_>) {
        match std::mem::replace(&mut self.stage, Stage::Done) {
            Stage::Asked(keys) => {
                let at = self.inner.caller().unwrap_or(0);
                if let Answer::Has(exist) = answer {
                    self.note(at, &keys, exist);
                }
                self.stage = Stage::Ask(at + 1);
            }
            Stage::Fetching(at) => {
                let values = if let Answer::Values(values) = answer { values } else { &[] };
                self.receive(at, values);
            }
            Stage::Removing(next) => self.stage = Stage::Fetch(next),
            stage => self.stage = stage,
        }
    }

    fn work(&mut self) {
        match self.stage {
            Stage::Ask(_) => self.ask(self.deadline),
            Stage::Wait => {
                self.fetch(self.deadline);
                self.stage = Stage::Done;
            }
            _ => {}
        }
    }
}
