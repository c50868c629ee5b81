//! An attention that was found: the layer, and the tensors and nodes that a rewrite needs.

use super::Layer;

/// Where queries, keys and values come from.
#[derive(Clone, Debug)]
pub(crate) enum Operands {
    /// Three tensors in the layout of the layer.
    Apart([String; 3]),
    /// One tensor, `[batch, tokens, (heads + 2 * heads of keys) * dim]`.
    Packed(String),
    /// Queries are packed, keys and values have their heads first.
    Mixed([String; 3]),
}

#[derive(Clone, Debug)]
pub(crate) struct FoundAttention {
    pub layer: Layer,
    pub operands: Operands,
    /// Positions for rotary, where the operator had its own.
    pub positions: Option<String>,
    /// A bias that is added to queries, keys and values, packed behind each other.
    pub bias: Option<String>,
    /// The tensor that the attention makes.
    pub output: String,
    /// The node in the graph that makes it: it is replaced.
    pub index: usize,
}
