//! The pages of a group of layers.
//!
//! ```text
//! group     the planner, the slabs, and what was dropped              dropped.rs
//! slabs     pages, as PageLayout says; low-bit pages that are not full, in floats
//! write     checked, planned with the copies before it, carried out   rows.rs, pages.rs, copy.rs
//! step      the same layer by layer; run.rs: on another thread        draft.rs: transactions
//! read      pages -> rows of the caller's                             page_rows.rs: pages in place, for attention
//! hold      blocks of snapshots and prefixes                        saved.rs: pages that leave the cache, and come back; below.rs: when
//! pages     on bytes (page.rs), by a device's kernels (launched/), in candle's operations alone (portable.rs)
//! ```
//!
//! - A page is one layer of one block: a K section and a V section, each codes `[kvHeads, blockSize, rowBytes]`, then scales.
//!   Where K and V are of one float type and head dim, the slab is a tensor `[blocks, layers, 2, kvHeads, blockSize, headDim]`.
//!   Otherwise it is bytes, and sections and scales start at multiples of 64.
//! - A low-bit page is quantised as a whole, once all its slots are written and committed. Until then its rows lie in a page of the
//!   *staging slab*. A write into a quantised page takes it back there for the length of that call.
//! - A page that others hold is never quantised in place: the writer, or who commits, gets a copy.
//! - Each low-bit format is one file of `kernels/quantise/`. All forms give the same codes, bit for bit.
//! - A device's kernels move the rows of all layers, and all low-bit pages of a call, in one launch. An accepted path moves row by
//!   row, in chains. Rows of the host are copied to the device in `launched/sources.rs` alone.
//! - Bulk writes and reads copy a head's run of tokens within a block at a time. They walk the larger side in order, stream past
//!   the caches from 8 MiB on, and share their blocks among the threads.
//! - Old bytes are never shown. A read of one token asks the marks. A bulk read finds zeros where nobody wrote: a page of a block
//!   that was given back is *dirty*, and its unmarked slots are zeroed before they are first read. In a quantised page they are
//!   zeros to the bit; K in q4, whose rows share a scale, gets a scale that has a zero.

mod below;
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
mod run;
mod saved;
mod slabs;
mod step;
mod write;

pub use below::{Below, Descent};
pub(crate) use group::PageGroup;
pub(crate) use hold::Hold;
#[cfg(feature = "captured-steps")]
pub(crate) use launched::{StepNumbers, insert};
pub use options::PagedKvCacheOptions;
pub use page_rows::PageRows;
#[cfg(feature = "captured-steps")]
pub(crate) use rows::{Expected, TokenRows, check_device};
pub(crate) use run::GroupRun;
pub use saved::{PageReader, PageWriter, StagedPage};
pub(crate) use slabs::{PagedShape, Slab};
pub(crate) use step::GroupStep;
pub use step::StepTokens;
#[cfg(feature = "captured-steps")]
pub(crate) use step::not_written;
pub(crate) use write::{PlannedWrite, check_ids};
