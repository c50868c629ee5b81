//! A step of a whole model: slots for all layers at once, layers one by one, lengths at once.

use super::store::StepState;

/// An open step of a [`ModelCache`](super::ModelCache); dropped before it was committed, it is undone at the cache's
/// next call.
#[derive(Debug)]
#[must_use = "a step that is dropped is undone"]
pub struct ModelStep {
    pub(super) state: StepState,
    pub(super) sequences: Box<[u64]>,
    pub(super) tokens: u32,
    /// The layers with keys and values of their own.
    pub(super) written: Box<[bool]>,
    pub(super) cache: u64,
}

impl ModelStep {
    /// The sequences that get tokens.
    #[must_use]
    pub fn sequences(&self) -> &[u64] {
        &self.sequences
    }

    /// Tokens of all of them.
    #[must_use]
    pub fn tokens(&self) -> u32 {
        self.tokens
    }
}
