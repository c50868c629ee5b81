//! Sliding windows: the tokens that later tokens attend to. A token's window includes its own position.

use crate::count::{count, count_positive};
use crate::error::Result;

/// The tokens that a token attends to: the last ones up to itself, and the sinks at the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    tokens: u32,
    sinks: u32,
}

impl Window {
    /// Returns a window of `tokens` tokens, in addition to the first `sinks` tokens.
    pub fn new(tokens: u32, sinks: u32) -> Result<Self> {
        Ok(Window { tokens: count_positive("window", tokens.into())?, sinks: count("sinks", sinks.into())? })
    }

    /// Tokens in the window.
    #[must_use]
    pub fn tokens(&self) -> u32 {
        self.tokens
    }

    /// Tokens at the start that stay visible.
    #[must_use]
    pub fn sinks(&self) -> u32 {
        self.sinks
    }

    /// The first token, besides the sinks, that the token at `position` attends to.
    #[must_use]
    pub(crate) fn first_seen(&self, position: u32) -> u32 {
        position.saturating_sub(self.tokens - 1)
    }
}
