//! What a paged cache is made of.
//!
//! ```text
//! slab      every page, as PageLayout says             slab.rs
//! staging   low-bit pages that are not full, in floats
//! copy      blocks that others see too, before a write
//! write     tokens -> rows -> pages, or staging        rows.rs, write.rs, staging.rs
//! read      pages -> rows of the caller's              read.rs
//! walk      pages in place, for attention              walk.rs, page_rows.rs
//!           in candle's operations alone               portable.rs
//! ```

mod copy;
mod page_rows;
mod portable;
mod read;
mod rows;
mod shape;
mod slab;
mod staging;
mod walk;
mod write;

pub use page_rows::PageRows;
pub(crate) use shape::PagedShape;
pub(crate) use slab::Slab;
