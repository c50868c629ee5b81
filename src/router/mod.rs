//! Which worker has the longest prefix of a prompt, and what others are told of a cache's blocks.

mod prefix_router;
#[cfg(feature = "net")]
mod publisher;
#[cfg(feature = "net")]
mod worker_events;
