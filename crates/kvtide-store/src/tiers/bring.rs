//! Blocks of a prompt that come back from the tiers.
//!
//! ```text
//! look_up   which of its blocks are not in the cache               on the cache's thread
//! ask       which tier has them                                    on any thread, until a deadline
//! begin     new blocks for as many of them as make a prefix        on the cache's thread
//! fetch     bytes into those, in the prompt's order                on threads of its own, until a deadline
//! end       prompts find those that came                           on the cache's thread
//! ```
//!
//! Several threads take pieces of the list in its order: while one waits for a store, another looks at what came and writes it. At the
//! deadline the caller goes on with what is there; what comes later is written into blocks that nobody will see, and dropped with them.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use kvtide_core::paged::BlockName;
use kvtide_tensor::{PagedKvCache, PromptOptions, Returning};

use super::attached::{Inner, Tiers};
use super::counts::Counts;
use super::lower::EntryStore;
use super::options::LowerPlace;
use crate::entry::{Decoded, Expected, StoreKey, decode};
use crate::error::Result;

/// Blocks that one thread brings at a time, and their bytes.
const PIECE: usize = 32;
const PIECE_BYTES: usize = 8 << 20;

/// Threads that bring blocks of one prompt, and of all prompts of a cache: what comes then is a miss.
const THREADS: usize = 3;
const THREADS_MAX: usize = 48;

/// Some of the tiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierSet(u64);

impl TierSet {
    /// All of them.
    pub const ALL: TierSet = TierSet(u64::MAX);

    /// Those of these places, counted from the host's memory, which is 0 whether it is a tier or not.
    #[must_use]
    pub fn of(places: &[u32]) -> Self {
        TierSet(places.iter().filter(|place| **place < 64).fold(0, |set, place| set | 1 << place))
    }

    fn has(self, place: usize) -> bool {
        self.0 >> place & 1 == 1
    }
}

/// A block that is asked for.
#[derive(Clone, Copy, Debug)]
struct Row {
    place: usize,
    group: usize,
    /// Among the new blocks of its group.
    row: usize,
    key: StoreKey,
    /// Where it is: 0 is memory.
    tier: usize,
}

/// The blocks of a prompt that are not in the cache, and where they are.
#[derive(Debug)]
pub struct Lookup {
    inner: Arc<Inner>,
    set: TierSet,
    /// In the prompt's order.
    wanted: Vec<StoreKey>,
    there: HashMap<StoreKey, usize>,
}

impl Tiers {
    /// Begins to look for a prompt's blocks in some of the tiers.
    pub fn look_up(
        &self,
        cache: &mut PagedKvCache,
        tokens: &[u32],
        options: PromptOptions<'_>,
        set: TierSet,
    ) -> Result<Lookup> {
        let blocks = cache.prompt_blocks(tokens, options)?;
        let mut wanted = Vec::new();
        for place in 0..blocks.len() {
            let missing = (0..blocks.groups()).filter(|&group| blocks.found(group, place).is_none());
            wanted.extend(missing.map(|group| StoreKey { block: *blocks.key(place), group: group as u16 }));
        }
        Ok(Lookup { inner: self.inner.clone(), set, wanted, there: HashMap::new() })
    }
}

impl Lookup {
    /// Asks the tiers from above to below, each for what those before do not have.
    pub fn ask(&mut self, deadline: Instant) {
        if let Some(top) = self.inner.top.as_ref().filter(|_| self.set.has(0)) {
            let held = self.wanted.iter().filter(|key| top.memory.contains(key));
            self.there.extend(held.map(|key| (*key, 0)));
        }
        let inner = self.inner.clone();
        for (tier, store) in inner.stores() {
            let keys = self.missing();
            if keys.is_empty() || !self.set.has(tier) || Instant::now() >= deadline {
                continue;
            }
            let has = store.has_many(&keys, deadline);
            self.there.extend(keys.into_iter().zip(has).filter(|(_, has)| *has).map(|(key, _)| (key, tier)));
        }
    }

    /// What no tier has so far, in the prompt's order.
    #[must_use]
    pub fn missing(&self) -> Vec<StoreKey> {
        if self.inner.is_forgotten.load(Ordering::Acquire) {
            return Vec::new();
        }
        self.wanted.iter().filter(|key| !self.there.contains_key(key)).copied().collect()
    }

    /// What the caller's own tier is to be asked for: nothing where there is none.
    #[must_use]
    pub fn asked_of_caller(&self) -> Vec<StoreKey> {
        match self.inner.caller() {
            Some(tier) if self.set.has(tier) => self.missing(),
            _ => Vec::new(),
        }
    }

    /// Notes that the caller's tier has blocks.
    pub fn note(&mut self, keys: impl IntoIterator<Item = StoreKey>) {
        if let Some(tier) = self.inner.caller() {
            self.there.extend(keys.into_iter().map(|key| (key, tier)));
        }
    }

    /// Whether a tier has any of them.
    #[must_use]
    pub fn is_worth(&self) -> bool {
        !self.there.is_empty()
    }

    /// Takes new blocks for those that make a longer prefix, as many as there is room for. Blocks that nobody holds make room.
    pub fn begin(&self, cache: &mut PagedKvCache, tokens: &[u32], options: PromptOptions<'_>) -> Result<Bring> {
        let key = |group: usize, name: &BlockName<'_>| StoreKey { block: name.key, group: group as u16 };
        let there = |group: usize, name: &BlockName<'_>| self.there.contains_key(&key(group, name));
        let returning = cache.begin_return(tokens, options, there)?;
        let mut rows = Vec::new();
        for group in 0..returning.blocks().groups() {
            for (row, &place) in returning.places(group).iter().enumerate() {
                let key = key(group, &returning.blocks().name(place));
                let tier = self.there[&key];
                rows.push(Row { place, group, row, key, tier });
            }
        }
        rows.sort_by_key(|row| row.place);
        Ok(Bring { work: Arc::new(Work::new(self.inner.clone(), returning, rows)) })
    }
}

impl Inner {
    /// The stores that are called from here, with their places; none once all is forgotten.
    fn stores(&self) -> impl Iterator<Item = (usize, &Arc<dyn EntryStore>)> {
        let is_forgotten = self.is_forgotten.load(Ordering::Acquire);
        let lower = self.lower.iter().enumerate().filter(move |_| !is_forgotten);
        lower.filter_map(|(at, lower)| Some((at + 1, lower.store()?)))
    }

    /// The place of the tier that only the caller reaches.
    fn caller(&self) -> Option<usize> {
        self.lower.iter().position(|lower| matches!(lower.place, LowerPlace::Caller)).map(|at| at + 1)
    }

    fn counts(&self, tier: usize) -> Option<&Counts> {
        match tier {
            0 => self.top.as_ref().map(|top| &top.counts),
            lower => self.lower.get(lower - 1).map(|lower| &lower.counts),
        }
    }
}

/// Blocks on their way back, shared by who waits for them and who lets prompts find them. Where they were not named when the last of
/// these is dropped, they are free again.
#[derive(Clone, Debug)]
pub struct Bring {
    work: Arc<Work>,
}

#[derive(Debug)]
struct Work {
    inner: Arc<Inner>,
    returning: Returning,
    rows: Vec<Row>,
    /// Which of them go together.
    pieces: Vec<Range<usize>>,
    next: AtomicUsize,
    threads: Arc<Threads>,
}

/// How many threads are at work.
#[derive(Debug, Default)]
struct Threads {
    running: Mutex<usize>,
    ended: Condvar,
}

impl Bring {
    /// The blocks of the prefix that is there once all of them came.
    #[must_use]
    pub fn length(&self) -> usize {
        self.work.returning.length()
    }

    /// Brings what the tiers have that are called from here. At the deadline it goes on with what came.
    pub fn fetch(&self, deadline: Instant) {
        let work = &self.work;
        if work.rows.iter().all(|row| row.tier == 0) {
            return work.run(deadline);
        }
        let threads = THREADS.min(work.pieces.len());
        for _ in 0..threads {
            if work.inner.fetchers.fetch_add(1, Ordering::AcqRel) >= THREADS_MAX {
                work.inner.fetchers.fetch_sub(1, Ordering::AcqRel);
                break;
            }
            let running = Running::new(work.clone());
            let fetch = move || running.run(deadline);
            // Where no thread can be had, what it was made of is dropped, and counts no more.
            let _ = std::thread::Builder::new().name("kvtide-bring".to_owned()).spawn(fetch);
        }
        let mut running = work.threads.running();
        while *running > 0 {
            let Some(left) = deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) else {
                break;
            };
            running = work.threads.ended.wait_timeout(running, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// What the caller's own tier is to give, in the prompt's order, with the most bytes of each.
    #[must_use]
    pub fn asked_of_caller(&self) -> Vec<(StoreKey, usize)> {
        let work = &self.work;
        let Some(tier) = work.inner.caller() else { return Vec::new() };
        let asked = work.rows.iter().filter(|row| row.tier == tier);
        asked.map(|row| (row.key, work.expected(row).bytes_max())).collect()
    }

    /// Takes what the caller's tier gave for a key. What is not what was asked for is left out, and answered with `false`.
    pub fn accept(&self, key: &StoreKey, bytes: &[u8]) -> bool {
        let row = self.work.rows.iter().find(|row| row.key == *key);
        row.is_some_and(|row| self.work.write(row, bytes))
    }

    /// Lets prompts find what came. Answers how many blocks came from each tier, by its place.
    pub fn end(&self, cache: &mut PagedKvCache) -> Result<Vec<u32>> {
        let work = &self.work;
        cache.end_return(&work.returning)?;
        let mut came = vec![0; work.inner.lower.len() + 1];
        for row in work.rows.iter().filter(|row| work.returning.is_there(row.group, row.row)) {
            came[row.tier] += 1;
        }
        for (tier, came) in came.iter().enumerate() {
            if let Some(counts) = work.inner.counts(tier) {
                Counts::add(&counts.found, *came as usize);
            }
        }
        Ok(came)
    }
}

impl Threads {
    fn running(&self) -> MutexGuard<'_, usize> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One thread that brings blocks, as long as it does.
struct Running {
    work: Option<Arc<Work>>,
    threads: Arc<Threads>,
}

impl Running {
    fn new(work: Arc<Work>) -> Self {
        let threads = work.threads.clone();
        *threads.running() += 1;
        Running { work: Some(work), threads }
    }

    fn run(self, deadline: Instant) {
        if let Some(work) = &self.work {
            work.run(deadline);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // First: whoever waits has the blocks for himself then.
        if let Some(work) = self.work.take() {
            work.inner.fetchers.fetch_sub(1, Ordering::AcqRel);
        }
        *self.threads.running() -= 1;
        self.threads.ended.notify_all();
    }
}

impl Work {
    fn new(inner: Arc<Inner>, returning: Returning, rows: Vec<Row>) -> Self {
        let mut pieces: Vec<Range<usize>> = Vec::new();
        let mut bytes = 0;
        for (at, row) in rows.iter().enumerate() {
            bytes += inner.page_bytes[row.group];
            match pieces.last_mut().filter(|piece| piece.len() < PIECE && bytes <= PIECE_BYTES) {
                Some(piece) => piece.end = at + 1,
                None => {
                    bytes = inner.page_bytes[row.group];
                    pieces.push(at..at + 1);
                }
            }
        }
        Work { inner, returning, rows, pieces, next: AtomicUsize::new(0), threads: Arc::default() }
    }

    fn expected(&self, row: &Row) -> Expected<'_> {
        let (block_size, page_bytes) = (self.inner.block_size, self.inner.page_bytes[row.group]);
        let key = self.returning.blocks().key(row.place);
        Expected { key, form: &self.inner.form, block_size, page_bytes }
    }

    /// Brings piece after piece until there are no more, or the deadline is there.
    fn run(&self, deadline: Instant) {
        while Instant::now() < deadline
            && let Some(piece) = self.pieces.get(self.next.fetch_add(1, Ordering::AcqRel))
        {
            let rows = &self.rows[piece.clone()];
            if let Some(top) = &self.inner.top {
                for row in rows.iter().filter(|row| row.tier == 0) {
                    if let Some(block) = top.memory.get(&row.key)
                        && block.is(&self.returning.blocks().name(row.place))
                    {
                        let _ = self.returning.write(row.group, row.row, &block.page);
                    }
                }
            }
            for (tier, store) in self.inner.stores() {
                self.bring(tier, &**store, rows, deadline);
            }
        }
    }

    fn bring(&self, tier: usize, store: &dyn EntryStore, rows: &[Row], deadline: Instant) {
        let rows: Vec<&Row> = rows.iter().filter(|row| row.tier == tier).collect();
        if rows.is_empty() {
            return;
        }
        let keys: Vec<StoreKey> = rows.iter().map(|row| row.key).collect();
        let most = rows.iter().map(|row| self.expected(row).bytes_max()).max().unwrap_or(0);
        let entries = store.get_many(&keys, most, deadline);
        let mut damaged = Vec::new();
        for (row, bytes) in rows.iter().zip(entries) {
            if bytes.is_some_and(|bytes| !self.write(row, &bytes)) {
                damaged.push(row.key);
            }
        }
        if !damaged.is_empty() {
            self.inner.lower[tier - 1].unnote(&damaged);
            store.remove_many(&damaged, deadline);
        }
    }

    /// Writes the block of an entry, if that is what was asked for.
    fn write(&self, row: &Row, bytes: &[u8]) -> bool {
        let name = self.returning.blocks().name(row.place);
        let page = decode(bytes, &self.expected(row)).filter(|found| is(found, &name));
        let Some(found) = page else {
            if let Some(counts) = self.inner.counts(row.tier) {
                Counts::add(&counts.damaged, 1);
            }
            return false;
        };
        let page = &bytes[found.page..][..self.inner.page_bytes[row.group]];
        self.returning.write(row.group, row.row, page).is_ok()
    }
}

/// Whether an entry is that of a name: of the parent as much as it says.
fn is(found: &Decoded, name: &BlockName<'_>) -> bool {
    found.parent.tag() == name.parent.tag() && found.tokens == name.tokens && found.extras == name.extras
}
