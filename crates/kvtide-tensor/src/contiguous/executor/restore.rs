//! Snapshots of the buffer: keeps their rows whole, and takes them back.

use std::sync::Arc;

use kvtide_core::{Run, Runs, SlotWrite};

use super::{Contiguous, HeldRows};
use crate::base::error::Result;
use crate::base::memory::Budget;
use crate::base::stats::Stats;
use crate::kernels::{copy_rows, write};
use crate::tensor::buffer::{Buffer, RowShape};
use crate::tensor::resolved::Resolved;
use crate::tensor::snapshot::{Held, Patch};

impl Contiguous {
    /// Keeps the present rows of `runs`. O(1).
    pub fn hold(&self, runs: Runs) -> HeldRows {
        let buffer = self.buffer.clone()?;
        Some(Held::new(buffer, runs))
    }

    /// True when `held` was taken from this cache, so that [`Contiguous::restore`] can take its buffer back.
    pub fn owns(&self, held: &Held) -> bool {
        held.buffer.is_of(&self.life)
    }

    /// Makes the buffer hold again what a snapshot of this cache saw. Rows that it has are not written: a view of them stays.
    pub fn restore(&mut self, held: &Arc<Held>) -> Result<()> {
        self.check_change()?;
        let overwritten = held.overwritten();
        for (_, run) in &overwritten {
            save(&held.buffer, *run, &self.budget, &mut self.stats)?;
        }
        self.guarded(|| {
            for (patch, run) in &overwritten {
                held.buffer.record(*run);
                copy_rows(&patch.rows, Run::new(run.start - patch.run.start, run.len), &held.buffer, run.start)?;
            }
            Ok(())
        })?;
        held.set_whole();
        self.adopt(held.buffer.clone());
        Ok(())
    }

    /// Fills a buffer of `slots` slots with the tokens `taken` of a snapshot followed by `sources`, from slot 0 on: the
    /// present buffer when it has that size, so that its address stays. The sources lie elsewhere.
    pub fn fill(
        &mut self,
        held: Option<&Held>,
        taken: Runs,
        slots: u32,
        shape: RowShape,
        sources: &mut [Resolved<'_>],
    ) -> Result<()> {
        self.check_change()?;
        for source in sources.iter_mut() {
            source.bring(self.budget.device())?;
        }
        let present = self.buffer.clone().filter(|buffer| buffer.slots == slots && buffer.shape == shape);
        let in_place = present.is_some();
        let buffer = match present {
            Some(buffer) => {
                let filled = Run::new(0, taken.len());
                save(&buffer, filled, &self.budget, &mut self.stats)?;
                buffer.record(filled);
                buffer
            }
            None => self.allocate(shape, slots)?,
        };
        let work = || fill_from_start(&buffer, held, taken, sources);
        if in_place {
            self.guarded(work)?
        } else {
            work()?
        }
        self.adopt(buffer);
        Ok(())
    }
}

/// Saves the rows of `run` for every snapshot that reads them in `buffer`, before they are written over.
pub(super) fn save(buffer: &Buffer, run: Run, budget: &Arc<Budget>, stats: &mut Stats) -> Result<()> {
    let snapshots = buffer.snapshots(Some(run));
    if snapshots.is_empty() {
        return Ok(());
    }
    let unsaved: Vec<Run> = snapshots.iter().map(|held| held.unsaved(run)).filter(|run| !run.is_empty()).collect();
    let (Some(start), Some(end)) =
        (unsaved.iter().map(|run| run.start).min(), unsaved.iter().map(|run| run.end()).max())
    else {
        return Ok(());
    };
    let run = Run::new(start, end - start);
    let rows = Buffer::new(buffer.shape, run.len, budget, None)?;
    rows.set_held(true);
    copy_rows(buffer, run, &rows, 0)?;
    stats.copies_on_write += 1;
    stats.copied_bytes += rows.bytes();
    let patch = Arc::new(Patch { run, rows });
    for held in snapshots {
        held.save(patch.clone());
    }
    Ok(())
}

/// Copies the tokens `taken` of a snapshot followed by `sources` to the front of `buffer`, in order.
fn fill_from_start(buffer: &Buffer, held: Option<&Held>, taken: Runs, sources: &[Resolved<'_>]) -> Result<()> {
    let kept = held.map_or(0, |held| held.runs.len());
    let old = |run: Run| run.overlap(Run::new(0, kept));
    let new = |run: Run| Run::new(run.start.max(kept) - kept, run.len - old(run).len);
    let mut runs = taken.iter();
    let (first, second) = (runs.next().unwrap_or_default(), runs.next().unwrap_or_default());
    // A run that has tokens of both has the snapshot's first, so the new ones of a run go behind its old ones.
    let rows = |before: u32, run: Run| Run::new(before + old(run).len, new(run).len);
    if let Some(held) = held {
        held.copy_to(Runs::two(old(first), old(second)), buffer)?;
    }
    let writes = [
        Some(SlotWrite { token: new(first).start, target: rows(0, first) }),
        Some(SlotWrite { token: new(second).start, target: rows(first.len, second) }),
    ];
    write(buffer, std::iter::empty(), sources, writes)
}
