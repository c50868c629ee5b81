//! What a snapshot keeps: a buffer, the slots it saw, and the rows that were saved when they were about to be written over.
//!
//! ```text
//! buffer   0 1 2 3 4 5 6 7        the snapshot saw 0..8; the cache was cut to 5 and appends two tokens:
//!          0 1 2 3 4 x y 7        rows 5 and 6 were saved first, for every snapshot that still reads them here
//! patches            5 6
//! ```
//!
//! Taking one is O(1). A slot is read from the first patch that has it, else from the buffer.

use std::sync::{Arc, Mutex};

use kvtide_core::{Run, Runs, Stamp};

use crate::base::error::Result;
use crate::kernels::copy_rows;
use crate::tensor::buffer::{Buffer, lock};

/// Rows as they were, saved before something else was written in their place.
#[derive(Debug)]
pub(crate) struct Patch {
    pub run: Run,
    pub rows: Buffer,
}

/// A snapshot's rows.
#[derive(Debug)]
pub(crate) struct Held {
    pub buffer: Arc<Buffer>,
    pub runs: Runs,
    saved: Mutex<Saved>,
}

/// What was saved so far.
#[derive(Debug)]
struct Saved {
    /// The last moment at which the buffer had every row of it.
    whole: Stamp,
    /// Oldest first.
    patches: Vec<Arc<Patch>>,
    /// The slots that they have, ascending; neighbours are joined, so that tokens written one by one make one run.
    slots: Vec<Run>,
}

impl Saved {
    fn add(&mut self, patch: Arc<Patch>) {
        let run = patch.run;
        let first = self.slots.partition_point(|known| known.end() < run.start);
        let behind = self.slots.partition_point(|known| known.start <= run.end());
        let joined = self.slots[first..behind].iter().fold(run, |joined, &known| hull(joined, known));
        self.slots.splice(first..behind, [joined]);
        self.patches.push(patch);
    }

    /// The smallest run that has every slot of `run` which no patch has; empty when there is none.
    fn missing(&self, run: Run) -> Run {
        let around = |slot: u32| {
            let place = self.slots.partition_point(|known| known.end() <= slot);
            self.slots.get(place).copied().filter(|known| known.start <= slot)
        };
        if run.is_empty() {
            return run;
        }
        let start = around(run.start).map_or(run.start, Run::end);
        let end = around(run.end() - 1).map_or(run.end(), |known| known.start);
        Run::new(start, end.saturating_sub(start))
    }
}

/// The smallest run that has the slots of both; an empty one counts for nothing.
fn hull(one: Run, other: Run) -> Run {
    if one.is_empty() || other.is_empty() {
        return if one.is_empty() { other } else { one };
    }
    let start = one.start.min(other.start);
    Run::new(start, one.end().max(other.end()) - start)
}

impl Held {
    /// The present rows of `runs`.
    pub fn new(buffer: Arc<Buffer>, runs: Runs) -> Arc<Self> {
        let saved = Saved { whole: buffer.stamp(), patches: Vec::new(), slots: Vec::new() };
        let held = Arc::new(Held { buffer, runs, saved: Mutex::new(saved) });
        held.buffer.register(&held);
        held
    }

    /// The smallest run that has every slot of `run` which is still read from the buffer; empty when there is none.
    pub fn unsaved(&self, run: Run) -> Run {
        let saved = lock(&self.saved);
        self.runs.iter().map(|shown| saved.missing(shown.overlap(run))).fold(Run::default(), hull)
    }

    /// Keeps rows that are about to be written over.
    pub fn save(&self, patch: Arc<Patch>) {
        lock(&self.saved).add(patch);
    }

    /// The rows of it that the buffer no longer has: slots of patches, to be copied back in this order.
    pub fn overwritten(&self) -> Vec<(Arc<Patch>, Run)> {
        let saved = lock(&self.saved);
        let mut found = Vec::new();
        for patch in saved.patches.iter().rev() {
            for shown in self.runs.iter() {
                let written = self.buffer.written(saved.whole, shown.overlap(patch.run));
                found.extend(written.into_iter().map(|run| (patch.clone(), run)));
            }
        }
        found
    }

    /// Says that the buffer has every row of it now.
    pub fn set_whole(&self) {
        lock(&self.saved).whole = self.buffer.stamp();
    }

    /// The patches, oldest first.
    pub fn patches(&self) -> Vec<Arc<Patch>> {
        lock(&self.saved).patches.clone()
    }

    /// Copies the tokens `taken` of what it saw to the front of `target`, in order.
    pub fn copy_to(&self, taken: Runs, target: &Buffer) -> Result<()> {
        let mut slot = 0;
        for part in taken.iter() {
            for run in self.runs.slice(part.start, part.len).iter() {
                copy_rows(&self.buffer, run, target, slot)?;
                for patch in self.patches().iter().rev() {
                    let shown = patch.run.overlap(run);
                    if !shown.is_empty() {
                        let from = Run::new(shown.start - patch.run.start, shown.len);
                        copy_rows(&patch.rows, from, target, slot + shown.start - run.start)?;
                    }
                }
                slot += run.len;
            }
        }
        Ok(())
    }
}
