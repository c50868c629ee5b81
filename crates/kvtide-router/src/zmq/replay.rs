//! Requests a replay from a publisher, on a separate connection that ends with the answers.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::timeout;

use super::{END, EVENTS};
use crate::zmtp::{Command, Endpoint, Incoming, Outgoing, Received, SocketType, connect};

/// A replay in progress.
pub(super) struct Replay {
    incoming: Incoming,
    /// Keeps the connection open, and answers heartbeats.
    outgoing: Outgoing,
    patience: Duration,
}

impl Replay {
    /// Requests batches from a number on; `None` if no publisher answers in time.
    pub(super) async fn ask(endpoint: &Endpoint, first: u64, patience: Duration) -> Option<Self> {
        let (incoming, mut outgoing) = connect(endpoint, SocketType::Dealer, EVENTS, patience).await.ok()?;
        outgoing.send(&[b"", &first.to_be_bytes()]).await.ok()?;
        timeout(patience, outgoing.flush()).await.ok()?.ok()?;
        Some(Replay { incoming, outgoing, patience })
    }

    /// The next batch; `Ok(None)` after the last one, and an error if it does not arrive in time.
    pub(super) async fn next(&mut self) -> Result<Option<(u64, Bytes)>, ()> {
        let parts = timeout(self.patience, self.message()).await.map_err(drop)?.map_err(drop)?;
        // Some publishers repeat the topic.
        let [.., number, batch] = parts.as_slice() else { return Err(()) };
        let number = <[u8; 8]>::try_from(&number[..]).map_err(drop)?;
        let is_end = number == END || batch.is_empty();
        Ok((!is_end).then(|| (u64::from_be_bytes(number), batch.clone())))
    }

    async fn message(&mut self) -> std::io::Result<Vec<Bytes>> {
        loop {
            match self.incoming.next().await? {
                Received::Message(parts) => return Ok(parts),
                Received::Command(command) => {
                    if let Command::Ping(context) = Command::parse(&command)? {
                        self.outgoing.pong(context).await?;
                    }
                }
            }
        }
    }
}
