//! Pages by a device's kernels: siblings of what is done on bytes, launched on the device's stream.
//!
//! ```text
//! sources    the rows of a call where the device reads them      uploaded where they are the host's
//! write      rows -> pages, or staging pages                     all layers in one launch
//! insert     one row of each sequence, where the device's numbers say
//! read       pages -> rows, through the device's memory
//! staging    staging pages <-> low-bit pages
//! moves      blocks, rows and zeros inside a slab
//! ```
//!
//! What is asked for was planned and checked; the launches check again that nothing reaches outside its memory. A launch is
//! enqueued; those of a call follow each other in the stream's order. O(bytes moved), and O(pages) on the host.

#[cfg(all(test, feature = "emulate"))]
mod agreement;
mod insert;
mod moves;
mod read;
mod sources;
mod staging;
mod write;

pub(crate) use insert::insert;
pub(super) use moves::{copy_pieces, move_rows};
pub(super) use read::{Reading, Taken};
pub(super) use staging::Slabs;
pub(super) use write::{scatter, seal_whole, stage};
