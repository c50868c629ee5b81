//! Pages by a device's kernels: siblings of what is done on bytes, launched on the device's stream.
//!
//! ```text
//! sources    the rows of a call where the device reads them      uploaded where they are the host's
//! write      rows -> pages, or staging pages                     all layers in one launch
//! insert     one row of each sequence, where the device's numbers say
//! read       pages -> rows, through the device's memory
//! seal       staging pages <-> low-bit pages
//! moves      blocks, rows and zeros inside a slab
//! ```
//!
//! What is asked for was planned and checked; the launches check again that nothing reaches outside its memory. A launch is
//! enqueued; those of a call follow each other in the stream's order. O(bytes moved), and O(pages) on the host.

#[cfg(all(test, feature = "emulate"))]
mod agreement;
#[cfg(feature = "captured-steps")]
mod insert;
mod moves;
mod read;
mod seal;
mod slabs;
mod sources;
mod write;

#[cfg(feature = "captured-steps")]
pub(crate) use insert::{StepNumbers, insert};
pub(super) use read::{LayerRead, ReadRun};
pub(super) use slabs::Launched;
