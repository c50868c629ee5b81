//! The index, the events of all publishers, and sockets that carry them.

#[cfg(feature = "zeromq")]
mod dynamo;
mod hybrid;
mod index;
#[cfg(feature = "zeromq")]
mod interop;
#[cfg(feature = "zeromq")]
mod publishing;
#[cfg(feature = "zeromq")]
#[path = "../support/raw_peer.rs"]
mod raw_peer;
#[cfg(feature = "zeromq")]
#[path = "../../../kvtide-core/tests/support/skipped.rs"]
mod skip;
#[path = "../support/mod.rs"]
mod support;
mod wire;
