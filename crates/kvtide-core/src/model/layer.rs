//! One layer, as its cache sees it, and what all layers' attention shares.

/// What a layer keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LayerKind {
    /// Every token.
    Full,
    /// The newest tokens, and some that never leave.
    Sliding {
        /// Positions that a query sees, its own among them: a key at `j` is seen from `i` when `i - j < window`.
        window: u32,
        /// Tokens at the start that stay visible, in addition to the window.
        sinks: u32,
    },
    /// Nothing of its own: it reads what this earlier layer keeps.
    SharedWith(u32),
}

/// A layer: what it keeps, and how large a token is in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LayerDescription {
    /// What it keeps.
    pub kind: LayerKind,
    /// Heads of keys and values.
    pub num_kv_heads: u32,
    /// Elements of one head's key.
    pub head_dim: u32,
    /// Elements of one head's value; 0 where values are read out of the keys.
    pub value_head_dim: u32,
}

impl LayerDescription {
    /// A layer that keeps every token, its values as large as its keys.
    #[must_use]
    pub fn full(num_kv_heads: u32, head_dim: u32) -> Self {
        LayerDescription { kind: LayerKind::Full, num_kv_heads, head_dim, value_head_dim: head_dim }
    }

    /// The same sizes, kept otherwise.
    #[must_use]
    pub fn with_kind(self, kind: LayerKind) -> Self {
        LayerDescription { kind, ..self }
    }
}

/// How the model attends, where that differs from plain attention: numbers that a step hands on, and that no cache looks at. What
/// differs from layer to layer is the layer's kind.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AttentionDescription {
    /// Heads of queries; none where nobody said.
    pub num_query_heads: Option<u32>,
    /// What products of queries and keys are multiplied with; none: one over the root of the head's dimension.
    pub scale: Option<f32>,
    /// Bends scores to `softcap * tanh(score / softcap)`.
    pub softcap: Option<f32>,
    /// Each query head of each layer has a learned logit that takes part in the softmax and has no value. The logits are
    /// weights of the model, and an option of attention; no token is kept for them.
    pub sink_logits: bool,
}
