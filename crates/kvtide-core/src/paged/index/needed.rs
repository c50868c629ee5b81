//! Which blocks a prefix needs in a group of layers: all of them, or with a window those of its sinks, what the next token sees, and the
//! block of the prefix's own last token.

use std::ops::Range;

use crate::paged::window::Window;

/// The blocks that a prefix of some length needs in one group.
#[derive(Clone, Debug)]
pub struct NeededBlocks {
    sinks: Range<usize>,
    seen: Range<usize>,
    /// Whether some blocks are not needed.
    has_window: bool,
}

impl NeededBlocks {
    /// Of a prefix of `length` blocks, of `size` tokens each.
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

    /// Their places, ascending.
    pub fn places(&self) -> impl Iterator<Item = usize> + use<> {
        self.sinks.clone().chain(self.seen.clone())
    }

    /// A place whose block is not there: a prefix can be no longer than that.
    pub fn missed(&self, mut there: impl FnMut(usize) -> bool) -> Option<usize> {
        // The first one that is not there ends the prefix; in a window the last one does.
        match self.has_window {
            false => self.seen.clone().find(|&place| !there(place)),
            true => self.seen.clone().rev().chain(self.sinks.clone()).find(|&place| !there(place)),
        }
    }
}
