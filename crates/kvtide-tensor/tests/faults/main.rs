//! Launches that fail, on the CPU that stands in for a GPU: one operation of a device after the other fails once in every call of
//! every cache. Then the cache is what it was before the call and goes on, or it is poisoned and says so to each later call; it never shows
//! wrong data, and nothing panics.
#![cfg(feature = "emulate")]

mod contiguous;
mod launches;
mod model;
mod paged;
mod surviving;
