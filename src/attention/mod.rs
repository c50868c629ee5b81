//! Attention: each call enters the addon once, with all of its options. Arguments are borrowed or copied, never kept
//! after the call or its task has ended.

pub(crate) mod call;
pub(crate) mod queries;
pub(crate) mod task;
