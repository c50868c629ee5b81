//! The pages of a group of layers.
//!
//! ```text
//! group     the planner, the slabs, and dropped handles               dropped.rs
//! slabs     pages, as in PageLayout; low-bit pages that are not full, in floats
//! write     checked, planned with copies on write, carried out        rows.rs, pages.rs, copy.rs
//! step      the same layer by layer; run.rs: on another thread        draft.rs: transactions
//! states    slots of states, in groups of states in place of layers     state_compute.rs: one state of a step run
//! read      pages -> rows of the caller                               page_rows.rs: pages in place, for attention
//! hold      blocks of snapshots and prefixes                          saved.rs: pages saved and loaded; offload.rs, below.rs
//! pages     on bytes (page.rs), with a device's kernels (launched/), with candle's operations alone (portable.rs)
//! ```
//!
//! - A page is one layer of one block: a K section and a V section, each with codes `[kvHeads, blockSize, rowBytes]`, then
//!   scales. If K and V have one float type and head dim, the slab is a tensor `[blocks, layers, 2, kvHeads, blockSize,
//!   headDim]`. Otherwise it is bytes, and sections and scales start at multiples of 64.
//! - A low-bit page is quantised as a whole, once all its slots are written. Its rows are in a page of the *staging slab*
//!   until then, and those of drafts and steps until they are committed. A write into a quantised page moves it back there
//!   for the duration of the call.
//! - A page that others hold never loses its floats: the writer, or the sequence that commits, gets a copy.
//! - Each low-bit format has a file of its own in `kernels/quantise/`. A new one is also added to `mod.rs`, `portable.rs`,
//!   `zero.rs` and `launched.rs` there, `attention/bytes/job.rs`, `attention/launched.rs`, the texts of errors in `slabs.rs`,
//!   `paged/pages/format.rs` of kvtide-core, launches and kernels of kvtide-cuda, and `lib/sequences/page-format.ts`. All
//!   implementations give the same codes, bit for bit.
//! - A device's kernels move the rows of all layers, and all low-bit pages of a call, in one launch. An accepted path moves
//!   row by row, in chains. Rows of the host are copied to the device in `launched/sources.rs` alone.
//! - Bulk writes and reads copy a head's run of tokens within a block at a time. They access the larger side in memory
//!   order, use non-temporal stores from 16 MiB on, and share their blocks among threads.
//! - Old bytes are never shown. A read of one token checks the marks. A bulk read gives zeros for slots that were never
//!   written: a page of a released block is *dirty*, and its unmarked slots are zeroed before they are first read. In a
//!   quantised page they are exactly zero; K in q4, whose rows share a scale, gets a scale that has a zero.

mod below;
mod copy;
mod draft;
mod dropped;
mod group;
mod hold;
mod host_copy;
mod launched;
mod offload;
mod options;
mod page;
mod page_rows;
mod pages;
mod portable;
mod read;
mod rows;
mod run;
mod saved;
mod scratch;
mod slabs;
mod state_compute;
mod states;
mod step;
mod write;

pub use below::{Below, Descent};
pub(crate) use group::PageGroup;
pub(crate) use hold::Hold;
pub use options::PagedKvCacheOptions;
pub use page_rows::PageRows;
pub(crate) use run::GroupRun;
pub use saved::{PageReader, PageWriter, StagedPage};
pub(crate) use slabs::{PagedShape, Slab};
pub(crate) use state_compute::StatePlace;
pub(crate) use step::GroupStep;
pub use step::StepTokens;
pub(crate) use write::{PlannedWrite, check_ids};
