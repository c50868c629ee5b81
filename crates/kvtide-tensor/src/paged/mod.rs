//! The pages of a group of layers.
//!
//! ```text
//! group     the planner, the slabs, and what was dropped
//! slab      every page, as PageLayout says             slab.rs
//! staging   low-bit pages that are not full, in floats
//! planned   what a call does, and the memory of all of it, before any of it is done
//! copy      blocks that others see too, before a write
//! write     tokens -> rows -> pages, or staging        rows.rs, write.rs, staging.rs, scratch.rs
//! read      pages -> rows of the caller's              read.rs
//! walk      pages in place, for attention              walk.rs, page_rows.rs
//! horizon   steps for as many tokens as may come, for captured steps
//!           in candle's operations alone               portable.rs
//!           by a device's kernels                      launched/
//! ```
//!
//! - A page is one layer of one block: a K section and a V section, each codes `[kvHeads, blockSize, rowBytes]`, then scales.
//!   Where K and V are of one float type and head dim, the slab is a tensor `[blocks, layers, 2, kvHeads, blockSize, headDim]`;
//!   otherwise it is bytes, and sections and scales start at multiples of 64.
//! - Low-bit pages are quantised as a whole, once all their slots are written and committed. Until then their rows lie in a page
//!   of the *staging slab* (`Staging` says in which); a write into a page that was quantised takes it back there for that call.
//! - Quantising (`kernels/quantise/`) is one file per format, loops without intrinsics that are compiled once for each kind of
//!   vectors: all forms give the same codes. A scale has the exponents of an f32 (`scale.rs`): q8 a bf16, q4 a word of 14 bits of scale and
//!   18 of minimum. K can be rotated by a Hadamard matrix first; a query is rotated alike.
//! - By a device's kernels (`paged/launched/`): an operation on a slab has its launches beside what it does on bytes. The rows of all layers,
//!   and all low-bit pages of a call, are one launch; an accepted path is too, row by row in chains. Rows of the host are copied to the device
//!   in `sources.rs` alone, and what is read comes back through memory of the device. `kvtide-cuda` seals, opens and zeroes low-bit
//!   pages (`quantise.cu`, `holes.cu`) with the codes of the host, bit for bit.
//! - Captured steps (`captured/`) are steps of as many tokens as may come: slots are taken ahead, tables and lengths lie on the device,
//!   and a graph writes, attends and moves lengths on, token by token. At the commit the step is shortened to what was replayed
//!   (`shorten_step`). What a replay writes counts for nobody until then, so that one that fails poisons nothing.
//! - Bulk writes and reads copy a head's run of tokens within a block at a time, walk the larger side in order, stream past the
//!   caches from 8 MiB on, and are shared by the threads block by block.
//! - Old bytes are never shown. A read of one token asks the marks. A bulk read finds zeros where nobody wrote: a page of a
//!   block that was given back is *dirty*, and its unmarked slots are zeroed before they are read, if they are ever.
//!   In a quantised page they are zeros to the bit (`kernels/quantise/zero.rs`): K in q4, whose rows share a scale, gets one that has a zero.
//! - What outlives a call (a snapshot, a prefix, a step) shares a list with its cache (`returns.rs`): dropped
//!   anywhere, it is taken back at the cache's next call, a read as well: nothing of a step that is gone is shown.

mod copy;
mod draft;
mod dropped;
mod group;
mod hold;
mod launched;
mod options;
mod page;
mod page_rows;
mod portable;
mod read;
mod rows;
mod scratch;
mod shape;
mod slab;
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
pub(crate) use rows::{Expected, TokenRows};
pub(crate) use shape::PagedShape;
pub(crate) use slab::Slab;
pub(crate) use step::GroupStep;
pub use step::StepTokens;
#[cfg(feature = "captured-steps")]
pub(crate) use step::not_written;
pub(crate) use write::{PlannedWrite, check_ids};
