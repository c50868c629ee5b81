//! Asks a publisher for batches again, on a connection of its own that ends with the answers.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::timeout;
use zeromq::{DealerSocket, Socket, SocketOptions, SocketRecv, SocketSend, ZmqMessage};

use super::END;

/// A replay under way.
pub(super) struct Replay {
    socket: DealerSocket,
    patience: Duration,
}

impl Replay {
    /// Asks for batches from a number on; none where nobody answers in time.
    pub(super) async fn ask(endpoint: &str, first: u64, patience: Duration) -> Option<Self> {
        let mut options = SocketOptions::default();
        options.connect_timeout(patience);
        let mut socket = DealerSocket::with_options(options);
        timeout(patience, socket.connect(endpoint)).await.ok()?.ok()?;
        let mut message = ZmqMessage::from(Bytes::new());
        message.push_back(Bytes::copy_from_slice(&first.to_be_bytes()));
        timeout(patience, socket.send(message)).await.ok()?.ok()?;
        Some(Replay { socket, patience })
    }

    /// The next batch; `Ok(None)` behind the last, an error where it does not come in time.
    pub(super) async fn next(&mut self) -> Result<Option<(u64, Bytes)>, ()> {
        let message = timeout(self.patience, self.socket.recv()).await.map_err(drop)?.map_err(drop)?;
        let frames = message.into_vec();
        // Some publishers send the topic again.
        let [.., number, batch] = frames.as_slice() else { return Err(()) };
        let number = <[u8; 8]>::try_from(&number[..]).map_err(drop)?;
        let is_end = number == END || batch.is_empty();
        Ok((!is_end).then(|| (u64::from_be_bytes(number), batch.clone())))
    }
}
