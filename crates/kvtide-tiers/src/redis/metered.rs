//! A connection that reads no more than was asked for: a server that sends more ends the connection.
//!
//! The client buffers an answer until it is complete, and the server decides how long an answer is. So each exchange
//! first allows as many bytes as its answer may have, and takes back the bytes that did not arrive.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The number of bytes that may still arrive.
#[derive(Debug, Default)]
pub(super) struct Allowance {
    bytes: AtomicU64,
    is_exceeded: AtomicBool,
}

impl Allowance {
    pub(super) fn new(bytes: u64) -> Arc<Self> {
        Arc::new(Allowance { bytes: AtomicU64::new(bytes), is_exceeded: AtomicBool::new(false) })
    }

    /// Allows this many more bytes.
    pub(super) fn add(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Takes back bytes that were allowed and did not arrive.
    pub(super) fn take_back(&self, bytes: u64) {
        let less = |allowed: u64| Some(allowed.saturating_sub(bytes));
        let _ = self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// Counts arrived bytes; false if they were not allowed.
    fn spend(&self, bytes: u64) -> bool {
        let less = |allowed: u64| allowed.checked_sub(bytes);
        let may_come = self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok();
        self.is_exceeded.fetch_or(!may_come, Ordering::Relaxed);
        may_come
    }

    /// True if more bytes have arrived than were allowed: the client only reports that the connection broke.
    pub(super) fn is_exceeded(&self) -> bool {
        self.is_exceeded.load(Ordering::Relaxed)
    }
}

/// A stream whose reads are counted.
pub(super) struct Metered<S> {
    stream: S,
    allowance: Arc<Allowance>,
}

impl<S> Metered<S> {
    pub(super) fn new(stream: S, allowance: Arc<Allowance>) -> Self {
        Metered { stream, allowance }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Metered<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        let bytes = (buf.filled().len() - before) as u64;
        if bytes > 0 && !self.allowance.spend(bytes) {
            buf.set_filled(before);
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, "more than was asked for")));
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Metered<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
