//! The blocks that a prefix needs in a group of layers: all of them, or, with a window, those of its sinks, those that
//! the next token attends to, and the block of the prefix's own last token.

use std::ops::Range;

use crate::paged::window::Window;

/// The blocks that a prefix of a given length needs in one group.
#[derive(Clone, Debug)]
pub struct NeededBlocks {
    sinks: Range<usize>,
    seen: Range<usize>,
    /// True if some blocks are not needed.
    has_window: bool,
}

impl NeededBlocks {
    /// Returns the needed blocks of a prefix of `length` blocks, of `size` tokens each.
    pub fn of(window: Option<Window>, length: usize, size: usize) -> Self {
        let Some(window) = window else { return NeededBlocks { sinks: 0..0, seen: 0..length, has_window: false } };
        let sinks = (window.sinks() as usize).div_ceil(size).min(length);
        let first = window.first_seen((length * size) as u32) as usize / size;
        let seen = first.min(length.saturating_sub(1)).max(sinks)..length;
        NeededBlocks { sinks: 0..sinks, seen, has_window: true }
    }

    pub fn contains(&self, place: usize) -> bool {
        self.sinks.contains(&place) || self.seen.contains(&place)
    }

    /// The places of the needed blocks, ascending.
    pub fn places(&self) -> impl Iterator<Item = usize> + use<> {
        self.sinks.clone().chain(self.seen.clone())
    }

    /// The place of a needed block that is not cached: the prefix can be no longer than this place.
    pub fn missed(&self, mut there: impl FnMut(usize) -> bool) -> Option<usize> {
        // Without a window, the first missing block ends the prefix; in a window, the last missing one does.
        match self.has_window {
            false => self.seen.clone().find(|&place| !there(place)),
            true => self.seen.clone().rev().chain(self.sinks.clone()).find(|&place| !there(place)),
        }
    }
}
