//! Page operations with a device's kernels, launched on the device's stream: counterparts of the operations on bytes.
//!
//! ```text
//! sources    the rows of a call where the device can read them   uploaded from host memory
//! write      rows -> pages, or staging pages                     all layers in one launch
//! read       pages -> rows, through device memory
//! seal       staging pages <-> low-bit pages
//! moves      blocks, rows and zeros inside a slab
//! ```
//!
//! Calls were planned and checked before; the launches check again that nothing reaches outside its memory. A launch is
//! enqueued; the launches of a call run in the stream's order. O(bytes moved), and O(pages) on the host.

#[cfg(all(test, feature = "emulate"))]
mod agreement;
mod moves;
mod read;
mod seal;
mod slabs;
mod sources;
mod write;

pub(super) use read::{LayerRead, ReadRun};
pub(super) use slabs::Launched;
