//! Logits, samplers and drawing tokens. Drawing changes neither logits nor samplers, so both can be shared with
//! background tasks.

pub(crate) mod draw;
pub(crate) mod grammar;
pub(crate) mod logits;
pub(crate) mod lookup;
pub(crate) mod matcher;
pub(crate) mod sampler;
