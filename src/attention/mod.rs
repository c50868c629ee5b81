//! Attention: one crossing for a call.

pub(crate) mod answer;
pub(crate) mod call;
pub(crate) mod lists;
pub(crate) mod queries;
pub(crate) mod request;
pub(crate) mod task;
