//! Fetches the entries of a prompt into new blocks: pieces that are requested together, the threads that take them, and
//! verification.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use kvtide_core::paged::BlockName;
use kvtide_tensor::pages::Returning;

use crate::entry::{Decoded, Expected, StoreKey, Unfit, decode};
use crate::inner::Inner;
use crate::options::Access;
use crate::stats::Counts;
use crate::tier::Side;

/// The most blocks of a piece, unless the caller calls the store, and the most bytes of any piece.
const PIECE: usize = 32;
const PIECE_BYTES: usize = 8 << 20;

/// The most threads that restore one prompt, and all prompts of a cache. A block that gets no thread is a miss.
const THREADS: usize = 3;
const THREADS_MAX: usize = 48;

/// A block to fetch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub place: usize,
    pub group: usize,
    /// The index among the new blocks of its group.
    pub row: usize,
    pub key: StoreKey,
    /// The place of the tier that has it; memory has place 0.
    pub tier: usize,
}

/// Rows of one tier that are requested together, in the prompt's order.
#[derive(Debug)]
pub(crate) struct Piece {
    tier: usize,
    rows: Vec<Row>,
    bytes: usize,
}

/// New blocks, and the entries that are fetched into them.
#[derive(Debug)]
pub(crate) struct Work {
    pub inner: Arc<Inner>,
    pub returning: Returning,
    /// The pieces of memory and of stores that this crate calls.
    pub pieces: Vec<Piece>,
    /// The pieces of the caller's store.
    pub of_caller: Vec<Piece>,
    next: AtomicUsize,
    threads: Arc<AtomicUsize>,
}

impl Work {
    /// Cuts rows, which are in the prompt's order, into pieces.
    pub fn new(inner: Arc<Inner>, returning: Returning, rows: Vec<Row>) -> Self {
        let (mut pieces, mut of_caller) = (Vec::<Piece>::new(), Vec::<Piece>::new());
        for row in rows {
            let is_of_caller = row.tier > 0 && inner.lower[row.tier - 1].is_of(Side::Caller);
            let (list, most) = if is_of_caller { (&mut of_caller, usize::MAX) } else { (&mut pieces, PIECE) };
            let bytes = inner.page_bytes[row.group];
            let last = list.iter_mut().rev().find(|piece| piece.tier == row.tier);
            match last.filter(|piece| piece.rows.len() < most && piece.bytes + bytes <= PIECE_BYTES) {
                Some(piece) => {
                    piece.bytes += bytes;
                    piece.rows.push(row);
                }
                None => list.push(Piece { tier: row.tier, rows: vec![row], bytes }),
            }
        }
        Work { inner, returning, pieces, of_caller, next: AtomicUsize::new(0), threads: Arc::default() }
    }

    /// Returns all rows that have arrived.
    pub fn arrived(&self) -> impl Iterator<Item = &Row> {
        let rows = self.pieces.iter().chain(&self.of_caller).flat_map(|piece| &piece.rows);
        rows.filter(|row| self.returning.is_there(row.group, row.row))
    }

    /// Restores blocks from memory and from the stores that this crate calls, until the deadline.
    pub fn fetch(self: &Arc<Self>, deadline: Instant) {
        if self.pieces.iter().all(|piece| piece.tier == 0) {
            while let Some(piece) = self.next_piece(deadline) {
                self.copy_from_memory(piece);
            }
        } else {
            self.start(deadline);
        }
        // Threads may still copy pieces that they took before.
        let inner = &self.inner;
        let is_over = || self.threads.load(Ordering::Acquire) == 0 || inner.is_forgotten();
        inner.waiters.wait(deadline, is_over);
    }

    /// Starts the threads, unless they were started before.
    pub fn start(self: &Arc<Self>, deadline: Instant) {
        if self.next.load(Ordering::Acquire) > 0 || self.threads.load(Ordering::Acquire) > 0 {
            return;
        }
        for _ in 0..THREADS.min(self.pieces.len()) {
            let Some(running) = Running::new(self) else { break };
            let fetch = move || running.run(deadline);
            // If the thread cannot be started, `running` is dropped, and no longer counted.
            let _ = std::thread::Builder::new().name("kvtide-restore".to_owned()).spawn(fetch);
        }
    }

    fn expected(&self, row: &Row) -> Expected<'_> {
        let (block_size, page_bytes) = (self.inner.block_size, self.inner.page_bytes[row.group]);
        let key = self.returning.blocks().key(row.place);
        Expected { key, group: row.key.group, form: &self.inner.form, block_size, page_bytes }
    }

    /// Returns the next piece, unless the deadline has passed.
    fn next_piece(&self, deadline: Instant) -> Option<&Piece> {
        if Instant::now() >= deadline { None } else { self.pieces.get(self.next.fetch_add(1, Ordering::AcqRel)) }
    }

    /// Returns the names of a piece's entries in their store, and the most bytes of one entry.
    pub fn asked(&self, piece: &Piece) -> (Vec<String>, usize) {
        let tier = &self.inner.lower[piece.tier - 1];
        let most = piece.rows.iter().map(|row| self.expected(row).bytes_max()).max().unwrap_or(0);
        (piece.rows.iter().map(|row| tier.entry_name(&row.key)).collect(), tier.envelope.bytes_max(most))
    }

    fn copy_from_memory(&self, piece: &Piece) {
        let Some(top) = &self.inner.top else { return };
        for row in &piece.rows {
            if let Some(block) = top.memory.get(&row.key)
                && block.is(&self.returning.blocks().name(row.place))
            {
                let _ = self.returning.write(row.group, row.row, &block.page);
            }
        }
    }

    /// Writes the values of a piece into its blocks. Returns the keys of damaged entries, which should be removed.
    pub fn write_all<'v>(&self, piece: &Piece, values: impl Iterator<Item = Option<&'v [u8]>>) -> Vec<StoreKey> {
        let rows = piece.rows.iter().zip(values);
        rows.filter(|(row, value)| value.is_some_and(|value| !self.write(row, value))).map(|(row, _)| row.key).collect()
    }

    /// Writes the block of a value, if it is the requested one. Returns false if the value is damaged; an entry of
    /// another form is a miss.
    fn write(&self, row: &Row, value: &[u8]) -> bool {
        let (name, expected) = (self.returning.blocks().name(row.place), self.expected(row));
        let tier = &self.inner.lower[row.tier - 1];
        let opened = tier.envelope.open(&tier.entry_name(&row.key), value, expected.bytes_max());
        match opened.as_deref().map_or(Err(Unfit::Damaged), |entry| Ok((entry, decode(entry, &expected)?))) {
            Ok((entry, found)) if is(&found, &name) => {
                let page = &entry[found.page..][..self.inner.page_bytes[row.group]];
                // A write that fails is a miss, and not the entry's fault.
                let _ = self.returning.write(row.group, row.row, page);
                true
            }
            Err(Unfit::Foreign) => true,
            Ok(_) | Err(Unfit::Damaged) => {
                Counts::add(&tier.counts.damaged, 1);
                false
            }
        }
    }
}

/// True if an entry has this name. The parent is compared as far as the entry has it.
fn is(found: &Decoded, name: &BlockName<'_>) -> bool {
    found.parent.tag() == name.parent.tag() && found.tokens == name.tokens && found.extras == name.extras
}

/// A thread that fetches entries. It holds no blocks while it waits for a store.
struct Running {
    work: Weak<Work>,
    inner: Arc<Inner>,
    threads: Arc<AtomicUsize>,
}

/// A request to one store.
struct Asked {
    /// The index of the piece.
    at: usize,
    tier: usize,
    names: Vec<String>,
    bytes_max: usize,
}

impl Running {
    /// `None` if too many threads of the cache are at work.
    fn new(work: &Arc<Work>) -> Option<Self> {
        let inner = work.inner.clone();
        if inner.fetchers.fetch_add(1, Ordering::AcqRel) >= THREADS_MAX {
            inner.fetchers.fetch_sub(1, Ordering::AcqRel);
            return None;
        }
        work.threads.fetch_add(1, Ordering::AcqRel);
        Some(Running { work: Arc::downgrade(work), inner, threads: work.threads.clone() })
    }

    /// Fetches pieces until there are no more, the deadline passes, or the restore is dropped.
    fn run(self, deadline: Instant) {
        while let Some(Asked { at, tier, names, bytes_max }) = self.next(deadline) {
            let tier = &self.inner.lower[tier - 1];
            let Access::Direct(store) = &tier.access else { return };
            if self.inner.is_forgotten() {
                return;
            }
            let values = store.get(&names, bytes_max, deadline);
            let Some(work) = self.work.upgrade() else { return };
            let damaged = work.write_all(&work.pieces[at], values.iter().map(Option::as_deref));
            drop(work);
            if !damaged.is_empty() && !self.inner.is_forgotten() {
                tier.unnote(&damaged);
                store.remove(&tier.entry_names(&damaged), deadline);
            }
        }
    }

    /// Returns the next piece of a store; pieces from memory are copied on the way.
    fn next(&self, deadline: Instant) -> Option<Asked> {
        loop {
            let work = self.work.upgrade()?;
            if Instant::now() >= deadline {
                return None;
            }
            let at = work.next.fetch_add(1, Ordering::AcqRel);
            let piece = work.pieces.get(at)?;
            if piece.tier == 0 {
                work.copy_from_memory(piece);
                continue;
            }
            let (names, bytes_max) = work.asked(piece);
            return Some(Asked { at, tier: piece.tier, names, bytes_max });
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.inner.fetchers.fetch_sub(1, Ordering::AcqRel);
        self.threads.fetch_sub(1, Ordering::AcqRel);
        self.inner.waiters.wake();
    }
}
