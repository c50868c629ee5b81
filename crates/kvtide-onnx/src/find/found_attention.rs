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
    /// Queries have a row for each token and head, `[batch, tokens * heads, dim]`; keys and values have their heads first.
    Rows([String; 3]),
}

impl Operands {
    /// The tensors of queries, keys and values, which may be one.
    pub fn tensors(&self) -> [&str; 3] {
        match self {
            Self::Apart(names) | Self::Mixed(names) | Self::Rows(names) => names.each_ref().map(String::as_str),
            Self::Packed(name) | Self::Projected { hidden: name, .. } => [name; 3],
        }
    }
}

/// Norms of each head of queries and keys, inside of an operator.
#[derive(Clone, Debug)]
pub(crate) struct HeadNorms {
    /// The weights for queries and for keys, one for each element of a head.
    pub weights: [String; 2],
    pub epsilon: f32,
}

/// The axes of scores and outputs, before the last one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Axes {
    /// Those of the layout.
    #[default]
    Apart,
    /// Batch and heads are one axis.
    BatchAndHeads,
    /// Tokens and heads are one axis, for keys of one head.
    TokensAndHeads,
}

/// The output of an attention.
#[derive(Clone, Debug)]
pub(crate) struct Output {
    pub name: String,
    pub axes: Axes,
}

impl Output {
    /// An output in the layout of the layer.
    pub fn of(name: &str) -> Self {
        Self { name: name.into(), axes: Axes::Apart }
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
    /// All keys and values, past and new ones together, if they are tensors: it reads them, or returns them.
    pub joined: Option<[String; 2]>,
    pub output: Output,
    /// The index of the node that computes the output and is replaced.
    pub index: usize,
}
