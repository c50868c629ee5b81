//! An attention that was found: its layer, and the tensors and nodes that a rewrite needs.

use super::Layer;

/// The tensors of queries, keys and values.
#[derive(Clone, Debug)]
pub(crate) enum Operands {
    /// Three tensors in the layout of the layer.
    Apart([String; 3]),
    /// One tensor, `[batch, tokens, (heads + 2 * heads of keys) * dim]`.
    Packed(String),
    /// Hidden states, whose product with the weights of queries, keys and values, plus a bias, is one packed tensor.
    Projected { hidden: String, weights: String, bias: Option<String> },
    /// Queries are packed; keys and values have their heads first.
    Mixed([String; 3]),
}

/// Norms of each head of queries and keys, inside of an operator.
#[derive(Clone, Debug)]
pub(crate) struct HeadNorms {
    /// The weights for queries and for keys, one for each element of a head.
    pub weights: [String; 2],
    pub epsilon: f32,
}

/// The output of an attention.
#[derive(Clone, Debug)]
pub(crate) struct Output {
    pub name: String,
    /// True if batch and heads are one axis.
    pub is_merged: bool,
}

impl Output {
    /// An output in the layout of the layer.
    pub fn of(name: &str) -> Self {
        Self { name: name.into(), is_merged: false }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct FoundAttention {
    pub layer: Layer,
    pub operands: Operands,
    /// Positions for rotary embedding, if the operator has its own.
    pub positions: Option<String>,
    /// A bias that is added to queries, keys and values, packed one behind the other.
    pub bias: Option<String>,
    /// Norms before rotary embedding.
    pub norms: Option<HeadNorms>,
    /// All keys and values that it reads, past and new ones together, if it reads them as tensors.
    pub joined: Option<[String; 2]>,
    pub output: Output,
    /// The index of the node that computes the output and is replaced.
    pub index: usize,
}
