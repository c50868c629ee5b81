//! The result of a call on a cache, before a view of it is made.
//!
//! A [`View`] stores its strides, which take time to compute. A caller that appends token by token seldom reads each result,
//! and a language binding may not want an object for each. A [`Shown`] is the buffer and a few numbers; views are made from
//! it on demand, at once or later, and report staleness alike.

use std::sync::Arc;

use kvtide_core::{Run, Runs, Stamp};

use crate::base::error::{Error, Result};
use crate::tensor::buffer::Buffer;
use crate::tensor::view::{CacheWindow, Kv, View};

/// Slots of a buffer as they were at one moment, returned by a call.
#[derive(Clone, Debug)]
pub struct Shown {
    buffer: Arc<Buffer>,
    numbers: ShownNumbers,
}

/// All fields of a [`Shown`] except its buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShownNumbers {
    /// The slots.
    pub runs: [Run; 2],
    /// The position after the last token.
    pub end: u64,
    /// The moment of the call; `None` if it shows the memory whatever is written there, and is never stale.
    pub stamp: Option<Stamp>,
    /// The window of the cache, if it has one.
    pub window: Option<CacheWindow>,
}

/// A handle that keeps the memory of views alive.
#[derive(Clone, Debug)]
pub struct BufferHandle(Arc<Buffer>);

impl Shown {
    pub(crate) fn new(buffer: Arc<Buffer>, runs: Runs, end: u64, stamp: Option<Stamp>) -> Self {
        Shown { buffer, numbers: ShownNumbers { runs: runs.parts(), end, stamp, window: None } }
    }

    /// Sets the window of its cache.
    pub(crate) fn in_window(mut self, window: Option<CacheWindow>) -> Self {
        self.numbers.window = window;
        self
    }

    /// Sets whether its last tokens belong to a draft with parents.
    pub(crate) fn of_tree(mut self, is_tree: bool) -> Self {
        if let Some(window) = &mut self.numbers.window {
            window.is_tree = is_tree;
        }
        self
    }

    /// A view of one part: the only one, or K (0) and V (1).
    #[must_use]
    pub fn view(&self, part: usize) -> View {
        self.clone().into_view(part)
    }

    /// Like [`Shown::view`], and consumes it.
    pub(crate) fn into_view(self, part: usize) -> View {
        let ShownNumbers { runs: [first, second], end, stamp, window } = self.numbers;
        let part = part.min(self.buffer.shape.parts - 1);
        View::of(self.buffer, part, Runs::two(first, second), end, stamp).in_window(window)
    }

    /// Views of K and V.
    pub(crate) fn into_kv(self) -> Kv {
        Kv { k: self.view(0), v: self.into_view(1) }
    }

    /// Views of all parts.
    pub(crate) fn views<const PARTS: usize>(&self) -> [View; PARTS] {
        std::array::from_fn(|part| self.view(part))
    }

    /// Its numbers.
    #[must_use]
    pub fn numbers(&self) -> ShownNumbers {
        self.numbers
    }

    /// Its memory.
    #[must_use]
    pub fn buffer(&self) -> BufferHandle {
        BufferHandle(self.buffer.clone())
    }

    /// True if its memory is its own, so that it outlives the cache.
    #[must_use]
    pub fn stands_alone(&self) -> bool {
        self.buffer.stands_alone()
    }

    /// A process-wide unique number of the buffer.
    #[must_use]
    pub fn buffer_id(&self) -> u64 {
        self.buffer.id
    }
}

impl From<Shown> for Kv {
    fn from(shown: Shown) -> Self {
        shown.into_kv()
    }
}

impl BufferHandle {
    /// Makes a [`Shown`] of this buffer from its numbers; fails if they do not fit this buffer.
    pub fn shown(&self, numbers: ShownNumbers) -> Result<Shown> {
        let slots = Run::new(0, self.0.slots);
        let inside =
            |run: &Run| run.start.checked_add(run.len).is_some() && slots.overlap(*run) == *run || run.is_empty();
        let tokens = numbers.runs.iter().map(|run| u64::from(run.len)).sum::<u64>();
        if !numbers.runs.iter().all(inside) || tokens > numbers.end {
            return Err(Error::argument("runs", format!("{:?}", numbers.runs), "slots of this buffer"));
        }
        Ok(Shown { buffer: self.0.clone(), numbers })
    }
}
