//! The executor of the contiguous caches: carries out a plan on one buffer, and saves rows for snapshots.
//!
//! ```text
//! take memory   new buffer? saved rows for snapshots? a result of its own?   fails: nothing has changed
//! move, write   in the new buffer, or in place after logging the slots       failed in place: poisoned
//! adopt         the new buffer is the cache's; the old one is its views'
//! ```
//!
//! The caller commits its planner afterwards. The cost is O(new tokens), plus the copies that [`Stats`] counts: growth,
//! compaction and copies on write.

use std::sync::Arc;

use kvtide_core::paged::Window;
use kvtide_core::{Drafts, Ending, Plan, Reads, Run, Runs, SlotMove, SlotWrite, Stamp, TransactionId};

use crate::base::error::{Error, Result};
use crate::base::life::Life;
use crate::base::memory::Budget;
use crate::base::stats::Stats;
use crate::tensor::buffer::{Buffer, Held, Patch, RowShape};
use crate::tensor::rows::{copy_rows, move_rows, write};
use crate::tensor::shown::Shown;
use crate::tensor::source::Resolved;
use crate::tensor::view::CacheWindow;

/// One buffer, the state that snapshots need, and the drafts after its tokens. The first tokens determine its shape, unless
/// the buffer is reserved.
#[derive(Debug)]
pub(crate) struct Contiguous {
    /// The open transactions.
    pub drafts: Drafts,
    /// For each open transaction, true if the shape was still undetermined when it began.
    blank: Vec<bool>,
    /// The shape of its rows, once known.
    pub shape: Option<RowShape>,
    buffer: Option<Arc<Buffer>>,
    budget: Arc<Budget>,
    /// The window of its cache, which is passed on to views.
    window: Option<CacheWindow>,
    life: Arc<Life>,
    poisoned: bool,
    stats: Stats,
}

/// The rows of a snapshot; `None` if the cache was empty.
pub(crate) type HeldRows = Option<Arc<Held>>;

/// Memory that views and snapshots still keep of a dropped cache counts as held.
impl Drop for Contiguous {
    fn drop(&mut self) {
        self.release();
    }
}

impl Contiguous {
    /// An executor without a buffer; memory is taken from `budget`.
    pub fn new(budget: Arc<Budget>) -> Self {
        Contiguous {
            drafts: Drafts::default(),
            blank: Vec::new(),
            shape: None,
            buffer: None,
            budget,
            window: None,
            life: Arc::default(),
            poisoned: false,
            stats: Stats::default(),
        }
    }

    /// Sets the window.
    pub fn sliding(mut self, window: Window) -> Self {
        self.window = Some(CacheWindow { window, is_tree: false });
        self
    }

    /// The window of its cache, if any.
    pub fn window(&self) -> Option<Window> {
        self.window.map(|of| of.window)
    }

    /// Fails if the cache was disposed of, or its content is undefined.
    pub fn check(&self) -> Result<()> {
        if self.life.is_closed() {
            return Err(Error::Disposed { object: "cache" });
        }
        if self.poisoned { Err(Error::Poisoned) } else { Ok(()) }
    }

    /// Like [`Contiguous::check`]; also fails while a background call reads the cache.
    pub fn check_change(&self) -> Result<()> {
        self.check()?;
        self.life.check_idle()
    }

    /// Like [`Contiguous::check_change`]; also fails while a transaction is open.
    pub fn check_undrafted(&self) -> Result<()> {
        self.check_change()?;
        Ok(self.drafts.check_none()?)
    }

    /// Allocates the first buffer before there are tokens.
    pub fn reserve(&mut self, shape: RowShape, slots: u32) -> Result<()> {
        let buffer = self.allocate(shape, slots)?;
        self.adopt(buffer);
        Ok(())
    }

    /// Reserves memory for the bookkeeping of one more transaction.
    pub fn reserve_draft(&mut self) -> Result<()> {
        self.blank.try_reserve(1).map_err(|_| Budget::process().refusal(1))
    }

    /// Opens a transaction for up to `room` tokens. [`Contiguous::reserve_draft`] has succeeded before.
    pub fn begin_draft(&mut self, room: u32) -> TransactionId {
        self.blank.push(self.shape.is_none());
        self.drafts.begin(room)
    }

    /// Ends a transaction. If none of the first tokens remain, the shape is undetermined again.
    pub fn end_draft(&mut self, ending: &Ending) {
        self.drafts.end(ending);
        let was_blank = self.blank.get(self.drafts.depth()).copied().unwrap_or(false);
        self.blank.truncate(self.drafts.depth());
        if was_blank && ending.kept == 0 {
            self.shape = None;
            self.release();
        }
    }

    /// The current slots `runs`, the last one at position `end - 1`; `None` before the first append.
    pub fn show(&self, runs: Runs, end: u64) -> Option<Shown> {
        let buffer = self.buffer.clone()?;
        let stamp = buffer.stamp();
        Some(Shown::new(buffer, runs, end, Some(stamp)).in_window(self.window))
    }

    /// A result without tokens, in the shape of `sources`. Does not determine the shape of the cache.
    pub fn show_none(&self, sources: &[Resolved<'_>]) -> Result<Shown> {
        Ok(Shown::new(self.allocate(self.shape_with(sources), 0)?, Runs::default(), 0, None))
    }

    /// The whole buffer, with all later writes: plain slots without a window.
    pub fn show_all(&self) -> Option<Shown> {
        let buffer = self.buffer.clone()?;
        let runs = Runs::one(Run::new(0, buffer.slots));
        let end = buffer.slots.into();
        Some(Shown::new(buffer, runs, end, None))
    }

    /// Logs that these slots were written by another caller.
    pub fn record(&self, run: Run) {
        if let Some(buffer) = &self.buffer {
            buffer.record(run);
        }
    }

    /// The number of its buffer, as in [`Shown::buffer_id`]; `None` if there is no buffer.
    pub fn buffer_id(&self) -> Option<u64> {
        self.buffer.as_ref().map(|buffer| buffer.id)
    }

    /// Closes the cache: its views fail from now on, and its memory is freed with the last of them.
    pub fn close(&mut self) {
        self.life.close();
        self.release();
    }

    /// The cache's costs.
    pub fn stats(&self) -> Stats {
        Stats {
            buffer_bytes: self.buffer.as_ref().map_or(0, |buffer| buffer.bytes()),
            held_bytes: self.budget.held(),
            used_bytes: self.budget.used(),
            limit_bytes: self.budget.limit(),
            ..self.stats
        }
    }

    /// Checks that the buffer is as large as the planner says and contains the slots that it shows.
    pub fn check_invariants(&self, slots: u32, live: Runs) -> std::result::Result<(), String> {
        self.drafts.check_invariants()?;
        let Some(buffer) = &self.buffer else {
            let closed = self.life.is_closed();
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

    /// Its shape, or else that of the first tokens.
    fn shape_with(&self, sources: &[Resolved<'_>]) -> RowShape {
        let first = || sources.first().map(|source| source.row_shape(sources.len()));
        self.shape.or_else(first).expect("the first tokens, where there is no shape")
    }

    fn allocate(&self, shape: RowShape, slots: u32) -> Result<Arc<Buffer>> {
        Ok(Arc::new(Buffer::new(shape, slots, &self.budget, Some(self.life.clone()))?))
    }

    fn adopt(&mut self, buffer: Arc<Buffer>) {
        self.release();
        buffer.set_held(false);
        buffer.set_spared(false);
        self.shape = Some(buffer.shape);
        self.buffer = Some(buffer);
    }

    /// Drops the buffer, which has no live rows: the next append allocates another one, of any shape.
    fn release(&mut self) {
        if let Some(before) = self.buffer.take() {
            before.set_held(true);
            before.set_spared(before.snapshots(None).is_empty());
        }
    }

    fn is_snapshotted(&self) -> bool {
        self.buffer.as_ref().is_some_and(|buffer| !buffer.snapshots(None).is_empty())
    }

    /// Runs `work`, which overwrites live rows. If it fails or panics, the cache is poisoned.
    fn guarded(&mut self, work: impl FnOnce() -> Result<()>) -> Result<()> {
        self.poisoned = true;
        work()?;
        self.poisoned = false;
        Ok(())
    }

    /// Carries out an append. Afterwards the buffer has `slots` slots, and the last token shown is at position `end - 1`.
    pub fn carry_out<S>(
        &mut self,
        plan: &Plan<S>,
        slots: u32,
        end: u64,
        sources: &mut [Resolved<'_>],
    ) -> Result<Shown> {
        self.check_change()?;
        let shape = self.shape_with(sources);
        for source in sources.iter_mut() {
            if let Some(buffer) = &self.buffer {
                source.stage(buffer)?;
            }
            // What was staged is in the host's memory.
            source.bring(self.budget.device())?;
        }
        let assembled = match plan.reads {
            Reads::Shared(_) => None,
            Reads::Assembled(before) => Some(self.assemble(before, end, shape, sources)?),
        };
        let in_place = plan.resize.is_none() && !(plan.compacts() && self.is_snapshotted());
        let (buffer, stamp) = match &self.buffer {
            Some(_) if in_place => self.write_in_place(plan, sources)?,
            _ => self.write_afresh(plan, slots, shape, sources)?,
        };
        let shown = match (plan.reads, assembled) {
            (_, Some(assembled)) => assembled,
            (Reads::Shared(runs) | Reads::Assembled(runs), None) => Shown::new(buffer, runs, end, Some(stamp)),
        };
        Ok(shown.in_window(self.window))
    }

    /// Moves rows inside the buffer, to the slots `written`.
    pub fn move_rows(&mut self, moves: &[SlotMove], written: Run) -> Result<()> {
        self.check_change()?;
        let Some(buffer) = self.buffer.clone().filter(|_| !moves.is_empty()) else { return Ok(()) };
        save(&buffer, written, &self.budget, &mut self.stats)?;
        buffer.record(written);
        self.guarded(|| move_rows(&buffer, moves.iter().copied()))
    }

    /// Assembles a result that is larger than the buffer: the rows `before`, and all of `sources`.
    fn assemble(&self, before: Runs, end: u64, shape: RowShape, sources: &[Resolved<'_>]) -> Result<Shown> {
        let tokens = sources[0].tokens();
        let result = Arc::new(Buffer::new(shape, before.len() + tokens, &self.budget, None)?);
        let mut slot = 0;
        for run in before.iter() {
            if let Some(buffer) = &self.buffer {
                copy_rows(buffer, run, &result, slot)?;
            }
            slot += run.len;
        }
        let all = SlotWrite { token: 0, target: Run::new(slot, tokens) };
        write(&result, std::iter::empty(), sources, [Some(all), None])?;
        result.set_held(true);
        result.set_spared(true);
        let mut parts = before.iter();
        let (first, second) = (parts.next().unwrap_or_default(), parts.next());
        let runs = match second {
            Some(second) => Runs::two(Run::new(0, first.len), Run::new(first.len, second.len + tokens)),
            None => Runs::one(Run::new(0, first.len + tokens)),
        };
        Ok(Shown::new(result, runs, end, None))
    }

    /// Carries out a plan in the current buffer. Returns the buffer, and the moment after the write.
    fn write_in_place<S>(&mut self, plan: &Plan<S>, sources: &[Resolved<'_>]) -> Result<(Arc<Buffer>, Stamp)> {
        let Contiguous { buffer: Some(buffer), budget, stats, poisoned, .. } = self else {
            return Err(Error::Disposed { object: "cache" });
        };
        for write in plan.writes() {
            save(buffer, write.target, budget, stats)?;
        }
        let compacts = plan.compacts();
        let moves = || plan.moves().filter(|moved| !moved.is_identity());
        if compacts {
            for moved in moves() {
                buffer.record(Run::new(moved.target, moved.source.len));
                stats.copied_bytes += buffer.bytes_of(moved.source.len);
            }
            stats.compactions += 1;
        }
        let stamp = plan.writes().map(|write| buffer.record(write.target)).last().unwrap_or_else(|| buffer.stamp());
        // If live rows are overwritten, a failure or panic leaves the cache poisoned; new rows alone are not visible yet.
        *poisoned = compacts;
        write(buffer, moves().filter(|_| compacts), sources, plan.writes)?;
        *poisoned = false;
        Ok((buffer.clone(), stamp))
    }

    /// Carries out a plan in a new buffer, which becomes the cache's. Returns it, and the moment after the write.
    fn write_afresh<S>(
        &mut self,
        plan: &Plan<S>,
        slots: u32,
        shape: RowShape,
        sources: &[Resolved<'_>],
    ) -> Result<(Arc<Buffer>, Stamp)> {
        let fresh = self.allocate(shape, slots)?;
        if let Some(present) = &self.buffer {
            for moved in plan.moves() {
                copy_rows(present, moved.source, &fresh, moved.target)?;
                self.stats.copied_bytes += fresh.bytes_of(moved.source.len);
            }
            *if plan.resize.is_some() { &mut self.stats.growths } else { &mut self.stats.copies_on_write } += 1;
        }
        plan.writes().for_each(|write| {
            fresh.record(write.target);
        });
        write(&fresh, std::iter::empty(), sources, plan.writes)?;
        self.adopt(fresh.clone());
        let stamp = fresh.stamp();
        Ok((fresh, stamp))
    }

    /// Keeps the current rows of `runs` for a snapshot. O(1).
    pub fn hold(&self, runs: Runs) -> HeldRows {
        let buffer = self.buffer.clone()?;
        Some(Held::new(buffer, runs))
    }

    /// True if `held` was taken from this cache, so that [`Contiguous::restore`] can use its buffer again.
    pub fn owns(&self, held: &Held) -> bool {
        held.buffer.is_of(&self.life)
    }

    /// Restores the rows of a snapshot of this cache. Rows that the buffer still has are not written, so views of them stay
    /// valid.
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

    /// Fills a buffer of `slots` slots with the tokens `taken` of a snapshot followed by `sources`, from slot 0 on. Uses the
    /// current buffer if it has that size, so that its address stays. The sources must not overlap it.
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

/// Saves the rows of `run` for every snapshot that reads them from `buffer`, before they are overwritten.
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
    // In a run with both, the snapshot's tokens come first, so the new tokens go after them.
    let rows = |before: u32, run: Run| Run::new(before + old(run).len, new(run).len);
    if let Some(held) = held {
        copy_held(held, Runs::two(old(first), old(second)), buffer)?;
    }
    let writes = [
        Some(SlotWrite { token: new(first).start, target: rows(0, first) }),
        Some(SlotWrite { token: new(second).start, target: rows(first.len, second) }),
    ];
    write(buffer, std::iter::empty(), sources, writes)
}

/// Copies the tokens `taken` of a snapshot to the front of `target`, in order.
fn copy_held(held: &Held, taken: Runs, target: &Buffer) -> Result<()> {
    let mut slot = 0;
    for part in taken.iter() {
        for run in held.runs.slice(part.start, part.len).iter() {
            copy_rows(&held.buffer, run, target, slot)?;
            for patch in held.patches().iter().rev() {
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
