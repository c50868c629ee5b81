//! The tiers of a cache: attaching them on the cache's thread, driving restores and writers, and the stores.

pub(crate) mod attach;
mod driver;
mod store;
#[cfg(feature = "net")]
mod store_services;
