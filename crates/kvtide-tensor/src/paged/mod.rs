//! What a paged cache is made of.
//!
//! ```text
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

mod copy;
mod drafting;
mod holding;
mod horizon;
mod launched;
mod page_rows;
mod planned;
mod portable;
mod prefix_keys;
mod prefix_namer;
mod read;
mod returns;
mod rows;
mod scratch;
mod shape;
mod sharing;
mod slab;
mod staging;
mod step;
mod walk;
mod write;

pub use drafting::PagedSequence;
pub use holding::{PagedPrefix, PagedSnapshot, PromptOptions};
pub(crate) use horizon::{check_rows_of_floats, horizon_offsets};
pub(crate) use launched::insert;
pub use page_rows::PageRows;
pub(crate) use planned::PlannedWrite;
pub(crate) use prefix_keys::PrefixKeys;
pub use prefix_namer::PrefixNamer;
pub(crate) use returns::{Returned, Returns};
pub(crate) use rows::{Expected, TokenRows};
pub(crate) use shape::PagedShape;
pub(crate) use slab::Slab;
pub(crate) use step::not_written;
pub use step::{PagedStep, StepTokens};
