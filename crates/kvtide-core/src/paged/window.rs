//! Sliding windows: which tokens later ones see, and which blocks nobody will see again.
//!
//! ```text
//! tokens   [ sinks ) ......... [ committed - window .. committed )
//! blocks   [ kept  ][ cleared  ][ kept ...
//! ```
//!
//! The window of a token counts its own position. Blocks go when they left the window of the last committed token, and so of
//! every token to come: whoever attends for the last token after an append finds its window whole, and so does a draft that is
//! taken back.

use super::sequence::Content;
use super::sequences::PagedPlanner;
use crate::count::{count, count_positive};
use crate::error::Result;

/// What a token sees: the last tokens up to itself, and the first ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    tokens: u32,
    sinks: u32,
}

impl Window {
    /// A window of `tokens` tokens, in addition to the first `sinks`.
    pub fn new(tokens: u32, sinks: u32) -> Result<Self> {
        Ok(Window { tokens: count_positive("window", tokens.into())?, sinks: count("sinks", sinks.into())? })
    }

    /// Tokens of the window.
    #[must_use]
    pub fn tokens(&self) -> u32 {
        self.tokens
    }

    /// Tokens that stay.
    #[must_use]
    pub fn sinks(&self) -> u32 {
        self.sinks
    }

    /// The first token that the one at `position` sees, beside the sinks.
    #[must_use]
    pub fn first_seen(&self, position: u32) -> u32 {
        position.saturating_sub(self.tokens - 1)
    }
}

impl PagedPlanner {
    /// Gives up the blocks of a sequence that left the window of its last committed token; there is room for the change.
    pub(super) fn clear_passed(&mut self, slot: u32) {
        let Some(window) = self.window else { return };
        let block_size = self.store.block_size;
        let of = self.sequences[slot as usize].as_mut().expect("a sequence that was found");
        let end = window.first_seen(of.committed().saturating_sub(1)) / block_size;
        let from = of.content.cleared.max(window.sinks.div_ceil(block_size));
        if end > from {
            let last = self.chunks.get(&of.content.table, end - 1).filter(|_| end <= of.content.chain.keyed);
            of.content.chain.passed = last.and_then(|block| self.store.index.key(block)).copied();
            self.chunks.clear(&mut of.content.table, from, end, self.store.chain());
            of.content.cleared = end;
        }
    }

    /// Whether a token at `position` would see some that are gone.
    pub(super) fn is_gone(&self, content: &Content, position: u32) -> bool {
        self.window.is_some_and(|window| {
            let first = window.first_seen(position) / self.store.block_size;
            first.max(window.sinks.div_ceil(self.store.block_size)) < content.cleared
        })
    }
}
