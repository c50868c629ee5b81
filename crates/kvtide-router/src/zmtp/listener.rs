//! Accepts connections, up to a limit, and runs one task per connection after its handshake.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::command::SocketType;
use super::connection::{Incoming, Outgoing, shake_hands};
use super::decoder::Limits;
use super::endpoint::Endpoint;
use super::{HANDSHAKE_TIME, HANDSHAKES_MAX, PEERS_MAX};

/// The pause after accepting a connection failed, for instance because the process has no file descriptor left.
const PAUSE: Duration = Duration::from_millis(100);

/// The time that peers have to receive queued batches when a listener ends.
const LINGER: Duration = Duration::from_secs(1);

/// A bound socket.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: TcpListener,
    endpoint: Endpoint,
}

impl Listener {
    pub(crate) async fn bind(endpoint: &str) -> io::Result<Self> {
        let asked = Endpoint::parse(endpoint).map_err(|reason| io::Error::new(io::ErrorKind::InvalidInput, reason))?;
        let socket = TcpListener::bind((asked.bind_host(), asked.port)).await?;
        let endpoint = socket.local_addr()?.into();
        Ok(Listener { socket, endpoint })
    }

    /// The bound address.
    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Serves peers until `end` resolves; then peers have a second to finish. Dropping the future ends them at once.
    pub(crate) async fn serve<Task>(
        self,
        socket: SocketType,
        limits: Limits,
        mut end: impl Future<Output = ()> + Unpin,
        serve: impl Fn(Incoming, Outgoing) -> Task,
    ) where
        Task: Future<Output = io::Result<()>> + Send + 'static,
    {
        let mut handshakes = JoinSet::new();
        // In order of arrival. Aborting a finished handshake does nothing.
        let mut aborts = VecDeque::new();
        let mut peers = JoinSet::new();
        loop {
            tokio::select! {
                accepted = self.socket.accept() => match accepted {
                    Ok((stream, _)) => {
                        let handshake = timeout(HANDSHAKE_TIME, shake_hands(stream, socket, limits));
                        aborts.push_back(handshakes.spawn(handshake));
                        if aborts.len() > HANDSHAKES_MAX && let Some(oldest) = aborts.pop_front() {
                            oldest.abort();
                        }
                    }
                    Err(_) => tokio::time::sleep(PAUSE).await,
                },
                Some(ended) = handshakes.join_next() => {
                    if let Ok(Ok(Ok((incoming, outgoing)))) = ended && peers.len() < PEERS_MAX {
                        peers.spawn(serve(incoming, outgoing));
                    }
                }
                Some(_) = peers.join_next() => {}
                () = &mut end => break,
            }
        }
        drop((self.socket, handshakes));
        let _ = timeout(LINGER, async { while peers.join_next().await.is_some() {} }).await;
    }
}
