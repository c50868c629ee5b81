//! Launches that fail, on the CPU that stands in for a GPU: in every call of every cache, each device operation fails once.
//! Afterwards the cache is unchanged and usable, or it is poisoned and every later call says so; it never shows wrong data,
//! and nothing panics.
#![cfg(feature = "emulate")]

mod contiguous;
mod launches;
mod model;
mod paged;
mod surviving;
