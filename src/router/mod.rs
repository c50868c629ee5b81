//! Picks the worker with the longest cached prefix of a prompt, and publishes a cache's events. Following and
//! publishing over the network need the feature `net`.

mod prefix_router;
#[cfg(feature = "net")]
mod published;
#[cfg(feature = "net")]
mod publisher;
#[cfg(feature = "net")]
mod worker_events;
