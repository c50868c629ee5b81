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

mod append;
mod restore;

use std::sync::Arc;

use kvtide_core::paged::Window;
use kvtide_core::{Run, Runs};

use crate::base::error::{Error, Result};
use crate::base::life::Life;
use crate::base::memory::Budget;
use crate::base::stats::Stats;
use crate::tensor::buffer::Held;
use crate::tensor::buffer::{Buffer, RowShape};
use crate::tensor::shown::Shown;
use crate::tensor::view::CacheWindow;

/// One buffer, and what keeps it whole.
#[derive(Debug)]
pub(crate) struct Contiguous {
    buffer: Option<Arc<Buffer>>,
    budget: Arc<Budget>,
    /// The window that its cache is, which goes with what it shows.
    window: Option<CacheWindow>,
    life: Arc<Life>,
    poisoned: bool,
    stats: Stats,
}

/// A snapshot's rows; none when the cache was empty.
pub(crate) type HeldRows = Option<Arc<Held>>;

/// What views and snapshots still keep of a cache that is dropped is held by them.
impl Drop for Contiguous {
    fn drop(&mut self) {
        self.release();
    }
}

impl Contiguous {
    /// No buffer yet; memory is taken from `budget`.
    pub fn new(budget: Arc<Budget>) -> Self {
        Contiguous {
            buffer: None,
            budget,
            window: None,
            life: Arc::default(),
            poisoned: false,
            stats: Stats::default(),
        }
    }

    /// The rows of a window.
    pub fn sliding(mut self, window: Window) -> Self {
        self.window = Some(CacheWindow { window, is_tree: false });
        self
    }

    /// The window of its cache, if that has one.
    pub fn window(&self) -> Option<Window> {
        self.window.map(|of| of.window)
    }

    /// Refuses a cache that was disposed of, or whose content is undefined.
    pub fn check(&self) -> Result<()> {
        if self.life.is_closed() {
            return Err(Error::Disposed { object: "cache" });
        }
        if self.poisoned { Err(Error::Poisoned) } else { Ok(()) }
    }

    /// Refuses a change besides, while someone reads it in the background.
    pub fn check_change(&self) -> Result<()> {
        self.check()?;
        self.life.check_idle()
    }

    /// Takes the first buffer before there are tokens.
    pub fn reserve(&mut self, shape: RowShape, slots: u32) -> Result<()> {
        let buffer = self.allocate(shape, slots)?;
        self.adopt(buffer);
        Ok(())
    }

    /// The present slots `runs`, the last one at position `end - 1`; nothing before the first append.
    pub fn show(&self, runs: Runs, end: u64) -> Option<Shown> {
        let buffer = self.buffer.clone()?;
        let stamp = buffer.stamp();
        Some(Shown::new(buffer, runs, end, Some(stamp)).in_window(self.window))
    }

    /// No tokens of this shape, of a cache that has none.
    pub fn show_none(&self, shape: RowShape) -> Result<Shown> {
        Ok(Shown::new(self.allocate(shape, 0)?, Runs::default(), 0, None))
    }

    /// The whole buffer, whatever it holds from now on: slots, which are no window.
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

    /// Ends the cache: its views are refused from now on, its memory goes with the last of them.
    pub fn close(&mut self) {
        self.life.close();
        self.release();
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

    fn allocate(&self, shape: RowShape, slots: u32) -> Result<Arc<Buffer>> {
        Ok(Arc::new(Buffer::new(shape, slots, &self.budget, Some(self.life.clone()))?))
    }

    fn adopt(&mut self, buffer: Arc<Buffer>) {
        self.release();
        buffer.set_held(false);
        buffer.set_spared(false);
        self.buffer = Some(buffer);
    }

    /// Lets go of the buffer, of which nothing is live: the next append takes another, of any shape.
    pub fn release(&mut self) {
        if let Some(before) = self.buffer.take() {
            before.set_held(true);
            before.set_spared(before.snapshots(None).is_empty());
        }
    }

    fn is_snapshotted(&self) -> bool {
        self.buffer.as_ref().is_some_and(|buffer| !buffer.snapshots(None).is_empty())
    }

    /// Runs `work`, which overwrites live rows: when it fails, or panics, the cache is poisoned.
    fn guarded(&mut self, work: impl FnOnce() -> Result<()>) -> Result<()> {
        self.poisoned = true;
        work()?;
        self.poisoned = false;
        Ok(())
    }
}
