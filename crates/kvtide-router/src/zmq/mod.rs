//! KV events over ZeroMQ, as vLLM sends them and Dynamo reads them.
//!
//! ```text
//! PUB      topic | number u64 big-endian | batch                  one message for each batch, numbered without gaps
//! ROUTER   asked:    (empty) | first number u64 big-endian        what is still kept from that number on
//!          answers:  (empty) | number | batch   …   (empty) | -1 i64 big-endian | (empty)
//! ```
//!
//! publisher sends, over history, which keeps the last batches; follower receives, over cursor, which decides what a number means, and
//! replay, which asks. Nothing here is secret or proven: whoever reaches an endpoint is believed, as everywhere in this protocol.

mod cursor;
mod follower;
mod history;
mod publisher;
mod replay;

pub use follower::{Followed, Follower, FollowerOptions};
pub use publisher::{Publisher, PublisherOptions};

/// What ends the answers to a request for a replay.
const END: [u8; 8] = (-1i64).to_be_bytes();

fn io(operation: &'static str, endpoint: &str, reason: impl ToString) -> crate::Error {
    crate::Error::Io { operation, endpoint: endpoint.to_owned(), reason: reason.to_string() }
}
