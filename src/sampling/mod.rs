//! Logits, and the tokens that are drawn from them.

pub(crate) mod draw;
pub(crate) mod logits;
pub(crate) mod lookup;
pub(crate) mod sampler;
