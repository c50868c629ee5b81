//! The description of one layer, as its cache sees it, and of the attention of all layers.

/// The tokens that a layer keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LayerKind {
    /// Every token.
    Full,
    /// The newest tokens, and sinks at the start that are never dropped.
    Sliding {
        /// Positions that a query attends to, including its own: a query at `i` attends to a key at `j` if `i - j <
        /// window`.
        window: u32,
        /// Tokens at the start that stay visible, in addition to the window.
        sinks: u32,
    },
    /// No tokens of its own: the layer reads those of this earlier layer.
    SharedWith(u32),
    /// No keys and values: the layer keeps a state of a fixed size for a sequence, whose tensors
    /// [`ModelDescription::with_states`](super::ModelDescription::with_states) lists.
    State,
    /// Nothing: the layer has neither attention nor a state, as the feed-forward layers that Nemotron-H counts as layers.
    Empty,
}

impl LayerKind {
    /// True if a layer of this kind has keys and values, its own or those of another layer.
    #[must_use]
    pub fn has_kv(self) -> bool {
        !matches!(self, LayerKind::State | LayerKind::Empty)
    }
}

/// A layer: the tokens it keeps, and the size of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LayerDescription {
    /// The tokens that it keeps.
    pub kind: LayerKind,
    /// Heads of keys and values; 0 in a layer without keys and values, as the two sizes below.
    pub num_kv_heads: u32,
    /// Elements of one head's key.
    pub head_dim: u32,
    /// Elements of one head's value; 0 if values are read out of the keys.
    pub value_head_dim: u32,
}

impl LayerDescription {
    /// Returns a layer that keeps every token, with values as large as its keys.
    #[must_use]
    pub fn full(num_kv_heads: u32, head_dim: u32) -> Self {
        LayerDescription { kind: LayerKind::Full, num_kv_heads, head_dim, value_head_dim: head_dim }
    }

    /// Returns a layer that keeps a state instead of keys and values.
    #[must_use]
    pub fn state() -> Self {
        LayerDescription { kind: LayerKind::State, num_kv_heads: 0, head_dim: 0, value_head_dim: 0 }
    }

    /// Returns a layer that keeps nothing.
    #[must_use]
    pub fn empty() -> Self {
        LayerDescription::state().with_kind(LayerKind::Empty)
    }

    /// Returns a layer of the same sizes and another kind.
    #[must_use]
    pub fn with_kind(self, kind: LayerKind) -> Self {
        LayerDescription { kind, ..self }
    }
}

/// Parameters of the model's attention where it differs from plain attention. Steps pass them on; no cache uses them.
/// Differences between layers belong to the kind of each layer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AttentionDescription {
    /// Heads of queries; [`None`] if unknown.
    pub num_query_heads: Option<u32>,
    /// The factor for products of queries and keys; [`None`] stands for one over the root of the head's dimension.
    pub scale: Option<f32>,
    /// Limits scores to `softcap * tanh(score / softcap)`.
    pub softcap: Option<f32>,
    /// True if each query head of each layer has a learned logit that takes part in the softmax and has no value. The
    /// logits are weights of the model, and an option of attention; no token is kept for them.
    pub sink_logits: bool,
}
