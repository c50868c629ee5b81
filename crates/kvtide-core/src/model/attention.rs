//! What all layers' attention shares: the numbers that a step hands on, and that no cache looks at.

/// How the model attends, where that differs from plain attention. What differs from layer to layer is the layer's kind.
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
