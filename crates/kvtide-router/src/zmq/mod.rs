//! KV events over ZeroMQ, as vLLM sends them and Dynamo reads them.
//!
//! ```text
//! PUB      topic | number u64 big-endian | batch                  one message per batch, numbered without gaps
//! ROUTER   request:  (empty) | first number u64 big-endian        everything still kept from that number on
//!          answers:  (empty) | number | batch   …   (empty) | -1 i64 big-endian | (empty)
//! ```
//!
//! publisher stores batches in shared, which subscriber and replays send; follower receives them, with cursor,
//! which classifies batch numbers, and replay, which requests replays. The protocol has neither encryption nor
//! authentication: anything that can reach an endpoint is trusted with events. Peers are still untrusted with memory:
//! the amount that a peer can make a process keep is bounded here and in [`crate::zmtp`].

mod cursor;
mod follower;
mod history;
mod publisher;
mod replay;
mod replays;
mod shared;
mod subscriber;

pub use follower::{Followed, Follower, FollowerOptions};
pub use publisher::{Publisher, PublisherOptions};

use crate::zmtp::{Limits, MESSAGE_BYTES_MAX};

/// Marks the end of the answers to a replay request.
const END: [u8; 8] = (-1i64).to_be_bytes();

/// Limits for messages from a publisher. Messages have three parts; others are ignored.
const EVENTS: Limits = Limits { parts: 16, bytes: MESSAGE_BYTES_MAX };

fn io(operation: &'static str, endpoint: &str, reason: impl ToString) -> crate::Error {
    crate::Error::Io { operation, endpoint: endpoint.to_owned(), reason: reason.to_string() }
}
