//! The functions that a model needs from a cache.
//!
//! A step adds tokens to every layer. Keys of one layer depend on the attention of the layer before, so a step has three
//! parts: it is opened for all layers at once, each layer writes and attends in turn, and it is committed for all layers at
//! once. Before the commit, its tokens are visible only within the step.

use candle_core::Tensor;

use crate::error::Result;

/// Keys and values of all layers of a model.
pub trait Cache {
    /// Returns the number of sequences in the batch. A step has the same number of tokens for each of them.
    fn rows(&self) -> usize;

    /// Opens a step of these new tokens, row by row, and returns their positions in the same order.
    ///
    /// The position of padding is 0.
    fn begin(&mut self, tokens: &[u32]) -> Result<Vec<u32>>;

    /// Writes a layer's keys, rotated to their positions, and values: `[rows, kv heads, tokens, head dim]` each.
    fn write(&mut self, layer: usize, k: &Tensor, v: &Tensor) -> Result<()>;

    /// Attends from a layer's queries, `[rows, query heads, tokens, head dim]`, to its keys and values; same output shape.
    fn attend(&mut self, layer: usize, q: &Tensor) -> Result<Tensor>;

    /// Commits the step: its tokens become part of the sequences. Fails if a layer was not written.
    fn commit(&mut self) -> Result<()>;
}
