//! The contiguous planners; their plans are carried out on plain lists.

mod drafts;
mod growable;
mod rollback;
mod rotating;
mod slots;

#[path = "../support/mod.rs"]
mod support;
mod write_log;
