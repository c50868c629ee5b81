//! Sliding windows: which tokens later ones see. A token's window counts its own position.

use crate::count::{count, count_positive};
use crate::error::Result;

/// What a token sees: the last tokens up to itself, and the sinks at the start.
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
