//! Attention: one crossing for a call.

pub(crate) mod call;
pub(crate) mod queries;
pub(crate) mod task;
