//! A connection: the handshake, then messages in both directions.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

use super::command::{MORE, SocketType, pong, write_head};
use super::decoder::{Decoder, Limits, Received};
use super::endpoint::Endpoint;
use super::{SEND_BYTES, SEND_TIME, broken, greeting};

/// TCP keepalive: the idle time before the first probe, and the time between probes.
const KEEPALIVE: [Duration; 2] = [Duration::from_secs(30), Duration::from_secs(10)];

/// The receiving half of a connection.
#[derive(Debug)]
pub(crate) struct Incoming {
    half: OwnedReadHalf,
    decoder: Decoder,
}

impl Incoming {
    /// The next message or command. An error ends the connection. Safe to cancel: no data is lost.
    pub(crate) async fn next(&mut self) -> io::Result<Received> {
        loop {
            if let Some(received) = self.decoder.next()? {
                return Ok(received);
            }
            if self.half.read_buf(self.decoder.room()).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

/// The sending half of a connection. Dropping it closes this direction.
#[derive(Debug)]
pub(crate) struct Outgoing {
    half: OwnedWriteHalf,
    /// Frames to be sent together.
    gathered: Vec<u8>,
}

impl Outgoing {
    /// Sends a message. A short one is buffered until [`Outgoing::flush`].
    pub(crate) async fn send(&mut self, parts: &[&[u8]]) -> io::Result<()> {
        for (at, part) in parts.iter().enumerate() {
            let more = if at + 1 < parts.len() { MORE } else { 0 };
            write_head(&mut self.gathered, more, part.len());
            if part.len() < SEND_BYTES {
                self.gathered.extend(*part);
            } else {
                self.flush().await?;
                write(&mut self.half, part).await?;
            }
            if self.gathered.len() >= SEND_BYTES {
                self.flush().await?;
            }
        }
        Ok(())
    }

    /// Sends the buffered frames.
    pub(crate) async fn flush(&mut self) -> io::Result<()> {
        write(&mut self.half, &self.gathered).await?;
        self.gathered.clear();
        Ok(())
    }

    /// Answers a heartbeat.
    pub(crate) async fn pong(&mut self, context: &[u8]) -> io::Result<()> {
        self.gathered.extend(pong(context));
        self.flush().await
    }

    /// Closes the sending direction.
    pub(crate) async fn end(mut self) -> io::Result<()> {
        self.half.shutdown().await
    }
}

/// Writes bytes in pieces. If a peer does not accept a piece in time, this is an error.
async fn write(half: &mut OwnedWriteHalf, bytes: &[u8]) -> io::Result<()> {
    for piece in bytes.chunks(SEND_BYTES) {
        timeout(SEND_TIME, half.write_all(piece)).await??;
    }
    Ok(())
}

/// Exchanges greetings and READY commands with a peer, and checks that this socket may talk to it. The caller sets the
/// deadline.
pub(super) async fn shake_hands(
    stream: TcpStream,
    socket: SocketType,
    limits: Limits,
) -> io::Result<(Incoming, Outgoing)> {
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE[0]).with_interval(KEEPALIVE[1]);
    SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
    let (mut half, mut other) = stream.into_split();
    other.write_all(&greeting::OURS).await?;
    let mut theirs = [0; greeting::BYTES];
    half.read_exact(&mut theirs).await?;
    greeting::check(&theirs)?;
    other.write_all(&socket.ready()).await?;
    let mut incoming = Incoming { half, decoder: Decoder::new(limits) };
    match incoming.next().await? {
        Received::Command(command) => socket.check(&command)?,
        Received::Message(_) => return Err(broken("a message before READY")),
    }
    Ok((incoming, Outgoing { half: other, gathered: Vec::new() }))
}

/// Connects to a peer, with a deadline.
pub(crate) async fn connect(
    endpoint: &Endpoint,
    socket: SocketType,
    limits: Limits,
    patience: Duration,
) -> io::Result<(Incoming, Outgoing)> {
    let connect = async {
        let stream = TcpStream::connect((endpoint.host.as_str(), endpoint.port)).await?;
        shake_hands(stream, socket, limits).await
    };
    timeout(patience, connect).await?
}

/// A one-part message that subscribes to topics with this prefix.
pub(crate) fn subscription(topic: &str) -> Bytes {
    [b"\x01", topic.as_bytes()].concat().into()
}
