//! What a paged cache is made of.
//!
//! ```text
//! slab      every page, as PageLayout says             slab.rs
//! staging   low-bit pages that are not full, in floats
//! write     tokens -> rows -> pages, or staging        rows.rs, write.rs, staging.rs
//! read      pages -> rows of the caller's              read.rs
//! walk      pages in place, for attention              walk.rs
//! ```

mod read;
mod rows;
mod shape;
mod slab;
mod staging;
#[cfg_attr(not(test), expect(dead_code, reason = "attention reads pages through it"))]
mod walk;
mod write;

pub(crate) use shape::PagedShape;
pub(crate) use slab::Slab;
