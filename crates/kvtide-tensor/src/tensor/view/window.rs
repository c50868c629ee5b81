//! The window of the cache that a view is of: how far the queries over it see, and what is no longer there.
//!
//! ```text
//! positions   [ sinks ) gone [ shown ............ )
//! ```
//!
//! It goes with the view into every part of it that still has its sequence, and not into copies: those are tensors. What was
//! narrowed away was nobody's loss, so what is gone stays what the cache has let go of.

use std::ops::Range;

use kvtide_core::paged::Window;

use super::{Kv, View};

/// The window of the cache that shows something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheWindow {
    /// Positions that a query sees back, its own among them, and those at the start.
    pub window: Window,
    /// True when the last tokens are a draft's that was given parents. Everything that the cache keeps is shown then, and how
    /// far each node sees goes by its depth.
    pub is_tree: bool,
}

impl View {
    /// The window of the cache that shows it: none of a copy, or of a view whose axes were changed.
    #[must_use]
    pub fn window(&self) -> Option<CacheWindow> {
        self.window.filter(|_| self.sequence.is_some())
    }

    /// The positions that its cache has let go of, behind the sinks.
    pub(crate) fn gone(&self) -> Range<u64> {
        if self.sequence.is_some() { self.gone[0]..self.gone[1] } else { 0..0 }
    }

    /// The same of a cache with this window.
    pub(crate) fn in_window(self, window: Option<CacheWindow>) -> View {
        View { window, ..self }
    }
}

impl Kv {
    /// The same of a cache with this window.
    pub(crate) fn in_window(self, window: Option<CacheWindow>) -> Kv {
        Kv { k: self.k.in_window(window), v: self.v.in_window(window) }
    }
}
