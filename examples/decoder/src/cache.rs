//! All that a model asks of a cache.
//!
//! A step adds tokens to every layer. Keys of one layer depend on the attention of the layer before, so a step has three
//! parts: it is opened for all layers at once, each layer writes and attends in turn, and it is committed for all layers at
//! once. Until then its tokens are seen by the step alone.

use candle_core::Tensor;

use crate::error::Result;

/// Keys and values of all layers of a model.
pub trait Cache {
    /// Sequences that are decoded side by side. A step has as many tokens for each of them.
    fn rows(&self) -> usize;

    /// Opens a step of these new tokens, one row behind the other. Answers their positions in the same order.
    ///
    /// Padding has no position of its own; it stands at 0.
    fn begin(&mut self, tokens: &[u32]) -> Result<Vec<u32>>;

    /// Adds a layer's keys, turned to their positions, and values: `[rows, kv heads, tokens, head dim]` each.
    fn write(&mut self, layer: usize, k: &Tensor, v: &Tensor) -> Result<()>;

    /// Attends from a layer's queries, `[rows, query heads, tokens, head dim]`, to what it holds; answers the like.
    fn attend(&mut self, layer: usize, q: &Tensor) -> Result<Tensor>;

    /// Ends the step: its tokens are there for good. Refused when a layer was not written.
    fn commit(&mut self) -> Result<()>;
}
