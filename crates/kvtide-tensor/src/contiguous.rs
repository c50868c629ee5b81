//! The executor of the contiguous caches: carries a plan out on one buffer.
//!
//! ```text
//! take memory   new buffer? saved rows for snapshots? a result of its own?   refused: nothing has changed
//! move, write   in the new buffer, or in place after noting the slots        failed in place: poisoned
//! adopt         the new buffer is the cache's; the old one is its views'
//! ```
//!
//! The caller commits its planner afterwards. Work is O(new tokens), but for what [`Stats`] counts: growth, compaction and
//! copies on write.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use candle_core::Tensor;
use kvtide_core::{Plan, Reads, Run, Runs, Write};

use crate::buffer::{Buffer, RowShape};
use crate::error::{Error, Result};
use crate::kernels::shift;
use crate::memory::Budget;
use crate::shown::Shown;
use crate::snapshot::{Held, Patch, copy_rows};
use crate::source::Resolved;
use crate::stats::Stats;

/// One buffer, and what keeps it whole.
#[derive(Debug)]
pub(crate) struct Contiguous {
    buffer: Option<Arc<Buffer>>,
    budget: Arc<Budget>,
    closed: Arc<AtomicBool>,
    poisoned: bool,
    stats: Stats,
}

/// A snapshot's rows; none when the cache was empty.
pub(crate) type HeldRows = Option<Arc<Held>>;

impl Contiguous {
    /// No buffer yet; memory is taken from `budget`.
    pub fn new(budget: Arc<Budget>) -> Self {
        Contiguous { buffer: None, budget, closed: Arc::default(), poisoned: false, stats: Stats::default() }
    }

    /// Refuses a cache that was disposed of, or whose content is undefined.
    pub fn check(&self) -> Result<()> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(Error::Disposed { object: "cache" });
        }
        if self.poisoned { Err(Error::Poisoned) } else { Ok(()) }
    }

    /// Takes the first buffer before there are tokens.
    pub fn reserve(&mut self, shape: RowShape, slots: u32) -> Result<()> {
        let buffer = self.allocate(shape, slots)?;
        self.adopt(buffer);
        Ok(())
    }

    /// Carries out an append. The buffer has `slots` slots afterwards, the last token shown is at position `end - 1`.
    pub fn carry_out<S>(
        &mut self,
        plan: &Plan<S>,
        slots: u32,
        end: u64,
        shape: RowShape,
        sources: &mut [Resolved<'_>],
    ) -> Result<Shown> {
        self.check()?;
        if let Some(buffer) = &self.buffer {
            for source in sources.iter_mut() {
                source.stage(buffer)?;
            }
        }
        let assembled = self.assemble(plan, end, shape, sources)?;
        let buffer = match self.buffer.clone() {
            Some(buffer) if plan.resize.is_none() && !(plan.compacts() && self.is_snapshotted()) => {
                self.write_in_place(&buffer, plan, sources)?;
                buffer
            }
            present => {
                let fresh = self.allocate(shape, slots)?;
                if let Some(present) = &present {
                    for moved in plan.moves() {
                        copy_rows(present, moved.source, &fresh, moved.target)?;
                        self.stats.copied_bytes += self.row_bytes(&fresh, moved.source.len);
                    }
                    *if plan.resize.is_some() { &mut self.stats.growths } else { &mut self.stats.copies_on_write } += 1;
                }
                plan.writes().for_each(|write| fresh.record(write.target));
                write(&fresh, |_| {}, sources, plan.writes)?;
                self.adopt(fresh.clone());
                fresh
            }
        };
        let shown = |runs| Shown::new(buffer.clone(), runs, end, Some(buffer.stamp()));
        Ok(match (plan.reads, assembled) {
            (_, Some(assembled)) => assembled,
            (Reads::Shared(runs) | Reads::Assembled(runs), None) => shown(runs),
        })
    }

    /// The present slots `runs`, the last one at position `end - 1`; nothing before the first append.
    pub fn show(&self, runs: Runs, end: u64) -> Option<Shown> {
        let buffer = self.buffer.clone()?;
        let stamp = buffer.stamp();
        Some(Shown::new(buffer, runs, end, Some(stamp)))
    }

    /// No tokens of this shape, of a cache that has none.
    pub fn show_none(&self, shape: RowShape) -> Result<Shown> {
        Ok(Shown::new(self.allocate(shape, 0)?, Runs::default(), 0, None))
    }

    /// The whole buffer, whatever it holds from now on.
    pub fn show_all(&self) -> Option<Shown> {
        let buffer = self.buffer.clone()?;
        let runs = Runs::one(Run::new(0, buffer.slots));
        let end = buffer.slots.into();
        Some(Shown::new(buffer, runs, end, None))
    }

    /// Notes that someone else has written these slots.
    pub fn record(&self, run: Run) {
        if let Some(buffer) = &self.buffer {
            buffer.record(run);
        }
    }

    /// Moves rows inside the buffer, to the slots `written`.
    pub fn move_rows(&mut self, moves: &[kvtide_core::Move], written: Run) -> Result<()> {
        self.check()?;
        let Some(buffer) = self.buffer.clone().filter(|_| !moves.is_empty()) else { return Ok(()) };
        self.save(&buffer, written)?;
        buffer.record(written);
        self.guarded(|| {
            let row = buffer.shape.row_bytes();
            buffer.edit(&[], |bytes, _| shift(bytes, buffer.slots as usize, row, moves.iter().copied()))
        })
    }

    /// Keeps the present rows of `runs`. O(1).
    pub fn hold(&self, runs: Runs) -> HeldRows {
        let buffer = self.buffer.clone()?;
        Some(Held::new(buffer, runs))
    }

    /// True when `held` was taken from this cache, so that [`Contiguous::restore`] can take its buffer back.
    pub fn owns(&self, held: &Held) -> bool {
        held.buffer.is_of(&self.closed)
    }

    /// Makes the buffer hold again what a snapshot of this cache saw.
    pub fn restore(&mut self, held: &Arc<Held>) -> Result<()> {
        self.check()?;
        let patches = held.patches();
        for patch in &patches {
            self.save(&held.buffer, patch.run)?;
        }
        self.guarded(|| {
            for patch in patches.iter().rev() {
                held.buffer.record(patch.run);
                copy_rows(&patch.rows, Run::new(0, patch.run.len), &held.buffer, patch.run.start)?;
            }
            Ok(())
        })?;
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
        self.check()?;
        let present = self.buffer.clone().filter(|buffer| buffer.slots == slots && buffer.shape == shape);
        let in_place = present.is_some();
        let buffer = match present {
            Some(buffer) => {
                let filled = Run::new(0, taken.len());
                self.save(&buffer, filled)?;
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

    /// Ends the cache: its views are refused from now on, its memory goes with the last of them.
    pub fn close(&mut self) {
        self.closed.store(true, Ordering::Relaxed);
        if let Some(buffer) = self.buffer.take() {
            buffer.set_held(true);
        }
    }

    /// What it costs.
    pub fn stats(&self) -> Stats {
        Stats {
            buffer_bytes: self.buffer.as_ref().map_or(0, |buffer| buffer.bytes()),
            held_bytes: self.budget.held(),
            used_bytes: self.budget.used(),
            limit_bytes: self.budget.limit(),
            ..self.stats
        }
    }

    /// Checks that the buffer is as large as the planner says and holds the slots that it shows.
    pub fn check_invariants(&self, slots: u32, live: Runs) -> std::result::Result<(), String> {
        let Some(buffer) = &self.buffer else {
            let closed = self.closed.load(Ordering::Relaxed);
            return if closed || live.is_empty() { Ok(()) } else { Err(format!("{live:?} without a buffer")) };
        };
        if buffer.slots != slots || live.end() > slots {
            return Err(format!("a buffer of {} slots for {slots} planned, {live:?} live", buffer.slots));
        }
        let (used, held) = (self.budget.used(), self.budget.held());
        if used != held + buffer.bytes() {
            return Err(format!("{used} bytes used, {held} held, {} in the buffer", buffer.bytes()));
        }
        Ok(())
    }

    fn allocate(&self, shape: RowShape, slots: u32) -> Result<Arc<Buffer>> {
        Ok(Arc::new(Buffer::new(shape, slots, &self.budget, Some(self.closed.clone()))?))
    }

    fn adopt(&mut self, buffer: Arc<Buffer>) {
        if let Some(before) = self.buffer.take() {
            before.set_held(true);
        }
        buffer.set_held(false);
        self.buffer = Some(buffer);
    }

    fn is_snapshotted(&self) -> bool {
        self.buffer.as_ref().is_some_and(|buffer| !buffer.snapshots(None).is_empty())
    }

    fn row_bytes(&self, buffer: &Buffer, rows: u32) -> u64 {
        buffer.bytes() / u64::from(buffer.slots.max(1)) * u64::from(rows)
    }

    /// The result that is more than the buffer holds, when the plan asks for one.
    fn assemble<S>(
        &self,
        plan: &Plan<S>,
        end: u64,
        shape: RowShape,
        sources: &[Resolved<'_>],
    ) -> Result<Option<Shown>> {
        let Reads::Assembled(before) = plan.reads else { return Ok(None) };
        let tokens = sources[0].tokens();
        let result = Arc::new(Buffer::new(shape, before.len() + tokens, &self.budget, None)?);
        let mut slot = 0;
        for run in before.iter() {
            if let Some(buffer) = &self.buffer {
                copy_rows(buffer, run, &result, slot)?;
            }
            slot += run.len;
        }
        let all = Write { token: 0, target: Run::new(slot, tokens) };
        write(&result, |_| {}, sources, [Some(all), None])?;
        result.set_held(true);
        let mut parts = before.iter();
        let (first, second) = (parts.next().unwrap_or_default(), parts.next());
        let runs = match second {
            Some(second) => Runs::two(Run::new(0, first.len), Run::new(first.len, second.len + tokens)),
            None => Runs::one(Run::new(0, first.len + tokens)),
        };
        Ok(Some(Shown::new(result, runs, end, None)))
    }

    fn write_in_place<S>(&mut self, buffer: &Arc<Buffer>, plan: &Plan<S>, sources: &[Resolved<'_>]) -> Result<()> {
        for write in plan.writes() {
            self.save(buffer, write.target)?;
        }
        let moves = || plan.moves().filter(|moved| !moved.is_identity());
        for moved in moves() {
            buffer.record(Run::new(moved.target, moved.source.len));
            self.stats.copied_bytes += self.row_bytes(buffer, moved.source.len);
        }
        self.stats.compactions += u64::from(plan.compacts());
        plan.writes().for_each(|write| buffer.record(write.target));
        let row = buffer.shape.row_bytes();
        let compact = |bytes: &mut [u8]| {
            if plan.compacts() {
                shift(
                    bytes,
                    buffer.slots as usize,
                    row,
                    plan.moves.iter().flatten().copied().filter(|moved| !moved.is_identity()),
                );
            }
        };
        self.guarded(|| write(buffer, compact, sources, plan.writes))
    }

    /// Saves the rows of `run` for every snapshot that reads them in `buffer`, before they are written over.
    fn save(&mut self, buffer: &Buffer, run: Run) -> Result<()> {
        let snapshots = buffer.snapshots(Some(run));
        let unsaved: Vec<Run> = snapshots.iter().map(|held| held.unsaved(run)).filter(|run| !run.is_empty()).collect();
        let (Some(start), Some(end)) =
            (unsaved.iter().map(|run| run.start).min(), unsaved.iter().map(|run| run.end()).max())
        else {
            return Ok(());
        };
        let run = Run::new(start, end - start);
        let rows = Buffer::new(buffer.shape, run.len, &self.budget, None)?;
        rows.set_held(true);
        copy_rows(buffer, run, &rows, 0)?;
        self.stats.copies_on_write += 1;
        self.stats.copied_bytes += rows.bytes();
        let patch = Arc::new(Patch { run, rows });
        for held in snapshots {
            held.save(patch.clone());
        }
        Ok(())
    }

    /// Runs `work`, which overwrites live rows: when it fails, or panics, the cache is poisoned.
    fn guarded(&mut self, work: impl FnOnce() -> Result<()>) -> Result<()> {
        self.poisoned = true;
        work()?;
        self.poisoned = false;
        Ok(())
    }
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
        Some(Write { token: new(first).start, target: rows(0, first) }),
        Some(Write { token: new(second).start, target: rows(first.len, second) }),
    ];
    write(buffer, |_| {}, sources, writes)
}

/// Writes new tokens to every part of `buffer` in one operation, after `before` has run on its bytes.
fn write(
    buffer: &Buffer,
    before: impl Fn(&mut [u8]),
    sources: &[Resolved<'_>],
    writes: [Option<Write>; 2],
) -> Result<()> {
    let mut tensors: [Option<&Tensor>; 2] = [None; 2];
    for (place, tensor) in sources.iter().filter_map(Resolved::tensor).enumerate() {
        tensors[place] = Some(tensor);
    }
    let work = |bytes: &mut [u8], memory: &[&[u8]]| {
        before(bytes);
        let mut memory = memory.iter().copied();
        for (part, source) in sources.iter().enumerate() {
            let source_bytes = source.bytes(&mut memory);
            for write in writes.iter().flatten() {
                let place = buffer.place(part, write.target.start);
                source.copy_from(source_bytes, write.token, write.target.len, bytes, place);
            }
        }
    };
    match tensors {
        [Some(one), Some(other)] => buffer.edit(&[one, other], work),
        [Some(one), None] => buffer.edit(&[one], work),
        _ => buffer.edit(&[], work),
    }
}
