//! Logits, and the tokens that are drawn from them.

pub(crate) mod logits;
