//! What a call on a cache shows, before anyone looks at it.
//!
//! A [`View`] knows its strides, which takes a moment to work out. Whoever appends token by token seldom looks at each result,
//! and a language binding may not want an object for each: a [`Shown`] is the buffer and a few numbers, from which views are
//! made on demand, then or later, with the same answer to whether they are stale.

use std::sync::Arc;

use kvtide_core::{Run, Runs, Stamp};

use crate::base::error::{Error, Result};
use crate::tensor::buffer::Buffer;
use crate::tensor::view::{CacheWindow, Kv, View};

/// Slots of a buffer that a caller is shown, as they were at one moment.
#[derive(Clone, Debug)]
pub struct Shown {
    buffer: Arc<Buffer>,
    numbers: ShownNumbers,
}

/// Everything of a [`Shown`] but its buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShownNumbers {
    /// The slots.
    pub runs: [Run; 2],
    /// The position behind the last token.
    pub end: u64,
    /// When it was; none when it shows whatever is there.
    pub stamp: Option<Stamp>,
    /// The window of the cache, if it has one.
    pub window: Option<CacheWindow>,
}

/// The memory of views, kept alive.
#[derive(Clone, Debug)]
pub struct BufferHandle(Arc<Buffer>);

impl Shown {
    pub(crate) fn new(buffer: Arc<Buffer>, runs: Runs, end: u64, stamp: Option<Stamp>) -> Self {
        Shown { buffer, numbers: ShownNumbers { runs: runs.parts(), end, stamp, window: None } }
    }

    /// The same of a cache with this window.
    pub(crate) fn in_window(mut self, window: Option<CacheWindow>) -> Self {
        self.numbers.window = window;
        self
    }

    /// The same, its last tokens those of a draft with parents if they are.
    pub(crate) fn of_tree(mut self, is_tree: bool) -> Self {
        if let Some(window) = &mut self.numbers.window {
            window.is_tree = is_tree;
        }
        self
    }

    /// One part of it: the only one, or K (0) and V (1).
    #[must_use]
    pub fn view(&self, part: usize) -> View {
        self.clone().into_view(part)
    }

    /// One part of it, and nothing else.
    pub(crate) fn into_view(self, part: usize) -> View {
        let ShownNumbers { runs: [first, second], end, stamp, window } = self.numbers;
        let part = part.min(self.buffer.shape.parts - 1);
        View::of(self.buffer, part, Runs::two(first, second), end, stamp).in_window(window)
    }

    /// K and V of it.
    pub(crate) fn into_kv(self) -> Kv {
        Kv { k: self.view(0), v: self.into_view(1) }
    }

    /// All parts of it.
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

    /// True when its memory is its own: it outlives the cache.
    #[must_use]
    pub fn stands_alone(&self) -> bool {
        self.buffer.stands_alone()
    }

    /// A number that no other buffer has.
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
    /// What was shown of this buffer, from its numbers; refused when they are not those of this buffer.
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
