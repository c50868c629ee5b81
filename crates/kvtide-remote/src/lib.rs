//! Values of stores that others run, many at a time.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod store;

pub use store::Store;
