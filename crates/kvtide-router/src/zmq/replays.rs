//! Answers replay requests: one task per connection, which answers one request after the other.
//!
//! Tasks share batches with the history. So a peer that does not read costs one batch and its buffers, until the
//! connection is closed.

use std::io;
use std::sync::Arc;

use bytes::Bytes;

use super::END;
use super::shared::Shared;
use crate::zmtp::{COMMAND_BYTES_MAX, Command, Incoming, Limits, Listener, Outgoing, Received, SocketType};

/// A request is a delimiter and a number; other messages are ignored.
const LIMITS: Limits = Limits { parts: 16, bytes: COMMAND_BYTES_MAX };

/// Serves peers until the publisher ends.
pub(super) async fn serve(listener: Listener, shared: Arc<Shared>) {
    let end = shared.clone();
    let end = std::pin::pin!(async move { end.closing().await });
    listener
        .serve(SocketType::Router, LIMITS, end, |incoming, outgoing| {
            let shared = shared.clone();
            async move {
                tokio::select! {
                    ended = answer(incoming, outgoing, &shared) => ended,
                    () = shared.closing() => Ok(()),
                }
            }
        })
        .await;
}

async fn answer(mut incoming: Incoming, mut outgoing: Outgoing, shared: &Shared) -> io::Result<()> {
    loop {
        match incoming.next().await? {
            Received::Message(parts) => {
                if let Some(first) = first_asked(&parts) {
                    replay(&mut outgoing, shared, first).await?;
                }
            }
            Received::Command(command) => {
                if let Command::Ping(context) = Command::parse(&command)? {
                    outgoing.pong(context).await?;
                }
            }
        }
    }
}

/// The number from which a request asks for batches.
fn first_asked(parts: &[Bytes]) -> Option<u64> {
    let first = match parts {
        [delimiter, first] if delimiter.is_empty() => first,
        [first] => first,
        _ => return None,
    };
    <[u8; 8]>::try_from(&first[..]).ok().map(u64::from_be_bytes)
}

/// Sends the kept batches from a number on, up to the latest one at the time of the request.
async fn replay(outgoing: &mut Outgoing, shared: &Shared, first: u64) -> io::Result<()> {
    let (behind, oldest) = {
        let state = shared.state();
        (state.next, state.history.from(first).map_or(state.next, |(number, _)| number))
    };
    if first.max(shared.first) < oldest.min(behind) {
        shared.note_behind();
    }
    let mut next = first;
    while let Some((number, batch)) = { shared.state().history.from(next) }.filter(|&(number, _)| number < behind) {
        outgoing.send(&[b"", &number.to_be_bytes(), &batch]).await?;
        next = number + 1;
    }
    outgoing.send(&[b"", &END, b""]).await?;
    outgoing.flush().await
}
