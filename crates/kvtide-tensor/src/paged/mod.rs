//! The pages of a group of layers.
//!
//! ```text
//! group     the planner, the slabs, and what was dropped           dropped.rs
//! slabs     every page, as PageLayout says                         slab.rs; low-bit pages that are not full, in floats
//! write     checked, planned with the copies before it, carried out   rows.rs, pages.rs, copy.rs
//! step      the same layer by layer                                draft.rs: transactions
//! read      pages -> rows of the caller's                          page_rows.rs: pages in place, for attention
//! hold      blocks of snapshots and prefixes
//! pages     on bytes (page.rs, scratch.rs), by a device's kernels (launched/), in candle's operations alone (portable.rs)
//! ```
//!
//! - A page is one layer of one block: a K section and a V section, each codes `[kvHeads, blockSize, rowBytes]`, then scales.
//!   Where K and V are of one float type and head dim, the slab is a tensor `[blocks, layers, 2, kvHeads, blockSize, headDim]`;
//!   otherwise it is bytes, and sections and scales start at multiples of 64.
//! - Low-bit pages are quantised as a whole, once all their slots are written and committed. Until then their rows lie in a page
//!   of the *staging slab*; a write into a page that was quantised takes it back there for that call.
//! - Quantising (`kernels/quantise/`) is one file per format. All forms give the same codes, bit for bit, kernels of a device among
//!   them.
//! - By a device's kernels the rows of all layers, and all low-bit pages of a call, are one launch; so is an accepted path, row by
//!   row in chains. Rows of the host are copied to the device in `launched/sources.rs` alone.
//! - Bulk writes and reads copy a head's run of tokens within a block at a time, walk the larger side in order, stream past the
//!   caches from 8 MiB on, and are shared by the threads block by block.
//! - Old bytes are never shown. A read of one token asks the marks. A bulk read finds zeros where nobody wrote: a page of a
//!   block that was given back is *dirty*, and its unmarked slots are zeroed before they are read, if they are ever.
//!   In a quantised page they are zeros to the bit; K in q4, whose rows share a scale, gets one that has a zero.

mod copy;
mod draft;
mod dropped;
mod group;
mod hold;
mod launched;
mod options;
mod page;
mod page_rows;
mod pages;
mod portable;
mod read;
mod rows;
mod shape;
mod slabs;
mod step;
mod write;

pub(crate) use group::PageGroup;
pub(crate) use hold::Hold;
#[cfg(feature = "captured-steps")]
pub(crate) use launched::{StepNumbers, insert};
pub use options::PagedKvCacheOptions;
pub use page_rows::PageRows;
#[cfg(feature = "captured-steps")]
pub(crate) use rows::{Expected, TokenRows, check_device};
pub(crate) use shape::PagedShape;
pub(crate) use slabs::Slab;
pub(crate) use step::GroupStep;
pub use step::StepTokens;
#[cfg(feature = "captured-steps")]
pub(crate) use step::not_written;
pub(crate) use write::{PlannedWrite, check_ids};
