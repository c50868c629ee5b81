//! The kernels of a device, launched on its stream: one file per operation, each a sibling of the portable one.
//!
//! Callers have checked what they ask for; the launches check again that nothing reaches outside its memory.

mod gather;
mod rows;
mod write;

pub(super) use gather::{gather, read};
pub(super) use rows::{copy_rows, move_rows};
pub(super) use write::write;
