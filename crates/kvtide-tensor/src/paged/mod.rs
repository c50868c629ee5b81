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

mod copy;
mod draft;
mod group;
mod held;
mod horizon;
mod launched;
mod options;
mod page_rows;
mod planned;
mod portable;
mod prefix_keys;
mod read;
mod returns;
mod rows;
mod scratch;
mod shape;
mod slab;
mod staging;
mod step;
mod walk;
mod write;

pub(crate) use group::PageGroup;
pub use held::PromptOptions;
pub(crate) use held::{GroupPrefix, GroupSnapshot};
pub(crate) use horizon::{check_rows_of_floats, horizon_offsets};
pub(crate) use launched::insert;
pub use options::PagedKvCacheOptions;
pub use page_rows::PageRows;
pub(crate) use planned::PlannedWrite;
pub(crate) use prefix_keys::PrefixKeys;
pub(crate) use returns::Returned;
pub(crate) use rows::{Expected, TokenRows};
pub(crate) use shape::PagedShape;
pub(crate) use slab::Slab;
pub use step::StepTokens;
pub(crate) use step::{GroupStep, not_written};
