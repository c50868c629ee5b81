//! Whether a cache is still there, who reads it in the background, and whether a step of it is computed elsewhere.
//!
//! A cache shares its life with its buffers, and so with their views. While a [`Pin`] lives the cache refuses to change what
//! it holds; while a [`RunPin`] lives it refuses to touch its pages. To be disposed of it accepts, and its memory then goes with the
//! last pin.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::base::error::{Error, Result};

/// The life of one cache.
#[derive(Debug, Default)]
pub(crate) struct Life {
    closed: AtomicBool,
    readers: AtomicU32,
    /// Steps that are computed elsewhere.
    runs: AtomicU32,
    /// A write elsewhere failed half-way.
    torn: AtomicBool,
}

impl Life {
    /// True once the cache was disposed of.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Says that the cache was disposed of.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    /// Refuses a change while someone reads.
    pub fn check_idle(&self) -> Result<()> {
        if self.readers.load(Ordering::Acquire) > 0 { Err(Error::Busy) } else { Ok(()) }
    }

    /// Refuses to touch pages while a step is computed elsewhere.
    pub fn check_no_run(&self) -> Result<()> {
        if self.runs.load(Ordering::Acquire) > 0 { Err(Error::Busy) } else { Ok(()) }
    }

    /// True once a write elsewhere failed half-way.
    pub fn is_torn(&self) -> bool {
        self.torn.load(Ordering::Acquire)
    }

    /// A write elsewhere begins: pages are torn if it is dropped before it has ended.
    pub fn begin_write(&self) -> ElsewhereWrite<'_> {
        ElsewhereWrite(self)
    }
}

/// Someone who reads a cache in the background, until it is dropped.
#[derive(Debug)]
pub(crate) struct Pin(Arc<Life>);

impl Pin {
    /// One more reader.
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

/// A write to pages by who is not their cache.
pub(crate) struct ElsewhereWrite<'a>(&'a Life);

impl ElsewhereWrite<'_> {
    /// All of it is done.
    pub fn end(self) {
        std::mem::forget(self);
    }
}

impl Drop for ElsewhereWrite<'_> {
    fn drop(&mut self) {
        self.0.torn.store(true, Ordering::Release);
    }
}

/// A step that is computed elsewhere, in some groups of layers, until it is dropped.
#[derive(Debug)]
pub(crate) struct RunPin(Vec<Arc<Life>>);

impl RunPin {
    /// One more in each of these lives.
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
