//! ZMTP 3.0, the wire protocol of ZeroMQ, as far as PUB, SUB, ROUTER and DEALER over TCP without authentication need it.
//!
//! ```text
//! greeting   ff 0000000000000000 7f | 03 00 | "NULL" and zeros (20 bytes) | 32 zeros          64 bytes, both sides
//! command    04 size | length of the name | name | body            06 and 8 bytes of size if it is longer than 255 bytes
//! READY      "Socket-Type" -> "PUB"                                the first command of both sides
//! message    01 size part, 01 size part, 00 size last part         03 and 02 with 8 bytes of size
//! ```
//!
//! endpoint parses addresses, greeting and command build and check bytes, decoder turns received bytes into messages,
//! connection performs the handshake, listener accepts connections. Peers are untrusted. So every quantity that a peer
//! controls has a bound, here or at the call site, and memory grows only with received bytes: a claimed size is
//! compared with a bound and never reserved.
//!
//! | controlled by a peer | bound |
//! | --- | --- |
//! | bytes of one frame, and of all parts of one message | [`Limits::bytes`] |
//! | parts of one message | [`Limits::parts`] |
//! | bytes of one command | [`COMMAND_BYTES_MAX`] |
//! | time from the connection to the end of the handshake | [`HANDSHAKE_TIME`] |
//! | connections in the handshake | [`HANDSHAKES_MAX`]; the oldest is closed for the newest |
//! | connections after the handshake | [`PEERS_MAX`]; further ones are closed |
//! | time for a peer to accept 64 KiB of sent data | [`SEND_TIME`] |
//!
//! A peer that exceeds a bound or breaks the protocol loses its connection. Other peers are not affected.

mod command;
mod connection;
mod decoder;
mod endpoint;
mod greeting;
mod listener;

use std::time::Duration;

pub(crate) use command::{Command, SocketType};
pub(crate) use connection::{Incoming, Outgoing, connect, subscription};
pub(crate) use decoder::{Limits, Received};
pub(crate) use endpoint::Endpoint;
pub(crate) use listener::Listener;

/// The most bytes of a command. READY with metadata has a few hundred, a topic at most [`TOPIC_BYTES_MAX`].
pub(crate) const COMMAND_BYTES_MAX: usize = 16 << 10;

/// The most bytes of a topic.
pub(crate) const TOPIC_BYTES_MAX: usize = 4 << 10;

/// The most bytes of a message with events: 16,384 blocks of 200 tokens.
pub(crate) const MESSAGE_BYTES_MAX: usize = 16 << 20;

/// Deadline for a peer's greeting and READY.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);

/// The most connections of one listener that have not finished the handshake.
const HANDSHAKES_MAX: usize = 64;

/// The most peers of one listener.
const PEERS_MAX: usize = 256;

/// The time that a peer has to accept [`SEND_BYTES`].
const SEND_TIME: Duration = Duration::from_secs(30);

/// The most bytes that are written to a connection at once.
pub(crate) const SEND_BYTES: usize = 64 << 10;

/// The error for a peer that breaks the protocol or exceeds a bound.
fn broken(why: impl Into<String>) -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::InvalidData, why.into())
}
