//! The state that a cache shares with its buffers and their views: whether it was disposed of, how many background calls
//! read it, and whether another thread computes one of its steps.
//!
//! While a [`Pin`] lives, the cache refuses changes to its content. While a [`RunPin`] lives, it refuses writes to its
//! pages. Under either pin, it refuses reads in place for which slots would have to be zeroed first; copies (`gather`,
//! `read_kv`) succeed. The table in `paged/group.rs` has every call, with the exceptions. Disposal always succeeds; the
//! memory is then freed with the last pin.

use std::sync::Arc;

use crate::base::error::{Error, Result};
use crate::base::sync::{AtomicBool, AtomicU32, Ordering};

/// The shared state of one cache.
#[derive(Debug, Default)]
pub(crate) struct Life {
    closed: AtomicBool,
    readers: AtomicU32,
    /// The number of steps that other threads compute.
    runs: AtomicU32,
    /// Set when a write by another thread failed half-way.
    torn: AtomicBool,
}

impl Life {
    /// True if the cache was disposed of.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Marks the cache as disposed of.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    /// Fails with [`Error::Busy`] while a background call reads the cache.
    pub fn check_idle(&self) -> Result<()> {
        if self.readers.load(Ordering::Acquire) > 0 { Err(Error::Busy) } else { Ok(()) }
    }

    /// Fails with [`Error::Busy`] while another thread computes a step.
    pub fn check_no_run(&self) -> Result<()> {
        if self.runs.load(Ordering::Acquire) > 0 { Err(Error::Busy) } else { Ok(()) }
    }

    /// True if a write by another thread failed half-way.
    pub fn is_torn(&self) -> bool {
        self.torn.load(Ordering::Acquire)
    }

    /// Begins a write by another thread. If the guard is dropped without [`ElsewhereWrite::end`], the pages count as torn.
    pub fn begin_write(&self) -> ElsewhereWrite<'_> {
        ElsewhereWrite(self)
    }
}

/// A background reader of a cache, until it is dropped.
#[derive(Debug)]
pub(crate) struct Pin(Arc<Life>);

impl Pin {
    /// Registers a reader.
    pub fn new(life: &Arc<Life>) -> Arc<Self> {
        life.readers.fetch_add(1, Ordering::Relaxed);
        Arc::new(Pin(life.clone()))
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.0.readers.fetch_sub(1, Ordering::Release);
    }
}

/// A write to pages by a thread other than the cache's.
pub(crate) struct ElsewhereWrite<'a>(&'a Life);

impl ElsewhereWrite<'_> {
    /// Ends the write: all of it succeeded.
    pub fn end(self) {
        std::mem::forget(self);
    }
}

impl Drop for ElsewhereWrite<'_> {
    fn drop(&mut self) {
        self.0.torn.store(true, Ordering::Release);
    }
}

/// A step that another thread computes, in some groups of layers, until this is dropped.
#[derive(Debug)]
pub(crate) struct RunPin(Vec<Arc<Life>>);

impl RunPin {
    /// Registers the step with each of these groups.
    pub fn new(lives: impl Iterator<Item = Arc<Life>>) -> Arc<Self> {
        let lives: Vec<_> = lives.collect();
        for life in &lives {
            life.runs.fetch_add(1, Ordering::Relaxed);
        }
        Arc::new(RunPin(lives))
    }
}

impl Drop for RunPin {
    fn drop(&mut self) {
        for life in &self.0 {
            life.runs.fetch_sub(1, Ordering::Release);
        }
    }
}
