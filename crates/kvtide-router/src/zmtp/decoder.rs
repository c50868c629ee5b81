//! Decodes received bytes into messages and commands.
//!
//! ```text
//! received ──> buffer ──frame by frame──> parts ──the last part──> a message
//! ```
//!
//! A frame whose head claims more than the limits is refused before any of it is stored. The buffer grows with the
//! received bytes, to at most twice their size. Parts are copies, so a short part does not keep a long buffer alive.
//! O(bytes).

use std::io;

use bytes::Bytes;

use super::command::{COMMAND, LONG, MORE};
use super::{COMMAND_BYTES_MAX, broken};

/// The limits of one message of a peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) parts: usize,
    /// Bytes of all parts together.
    pub(crate) bytes: usize,
}

/// A received message or command.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// The parts of a message.
    Message(Vec<Bytes>),
    Command(Bytes),
}

/// The smallest free space of the buffer when reading from the connection.
const READ_BYTES: usize = 8 << 10;

#[derive(Debug)]
pub(super) struct Decoder {
    limits: Limits,
    buffer: Vec<u8>,
    /// The first byte of the buffer that is not decoded yet.
    start: usize,
    /// The parts of an incomplete message.
    parts: Vec<Bytes>,
    parts_bytes: usize,
}

/// The head of a frame.
struct Head {
    flags: u8,
    size: u64,
    bytes: usize,
}

impl Decoder {
    pub(super) fn new(limits: Limits) -> Self {
        Decoder { limits, buffer: Vec::new(), start: 0, parts: Vec::new(), parts_bytes: 0 }
    }

    /// The buffer, with free space after its bytes.
    pub(super) fn room(&mut self) -> &mut Vec<u8> {
        self.buffer.drain(..self.start);
        self.start = 0;
        if self.buffer.is_empty() {
            self.buffer.shrink_to(READ_BYTES);
        }
        self.buffer.reserve(READ_BYTES);
        &mut self.buffer
    }

    /// The next message or command; `None` if more bytes are needed. After an error the connection is unusable.
    pub(super) fn next(&mut self) -> io::Result<Option<Received>> {
        while let Some(Head { flags, size, bytes }) = self.head()? {
            self.check(flags, size)?;
            let first = self.start + bytes;
            // The cast is safe: `check` has bounded the size.
            let Some(frame) = self.buffer.get(first..first + size as usize) else { return Ok(None) };
            let frame = Bytes::copy_from_slice(frame);
            self.start = first + frame.len();
            if flags & COMMAND != 0 {
                return Ok(Some(Received::Command(frame)));
            }
            self.parts_bytes += frame.len();
            self.parts.push(frame);
            if flags & MORE == 0 {
                self.parts_bytes = 0;
                return Ok(Some(Received::Message(std::mem::take(&mut self.parts))));
            }
        }
        Ok(None)
    }

    fn head(&self) -> io::Result<Option<Head>> {
        let received = &self.buffer[self.start..];
        let Some(&flags) = received.first() else { return Ok(None) };
        if flags & !(MORE | LONG | COMMAND) != 0 || flags & (MORE | COMMAND) == MORE | COMMAND {
            return Err(broken(format!("a frame with the flags {flags:#x}")));
        }
        let size = if flags & LONG == 0 {
            received.get(1).map(|&size| (u64::from(size), 2))
        } else {
            received.get(1..9).map(|size| (u64::from_be_bytes(size.try_into().expect("eight bytes")), 9))
        };
        Ok(size.map(|(size, bytes)| Head { flags, size, bytes }))
    }

    /// Returns an error if a frame would exceed a limit.
    fn check(&self, flags: u8, size: u64) -> io::Result<()> {
        let is_command = flags & COMMAND != 0;
        let most = if is_command { COMMAND_BYTES_MAX } else { self.limits.bytes - self.parts_bytes };
        if size > most as u64 {
            return Err(broken(format!("a frame of {size} bytes, expected at most {most}")));
        }
        if !is_command && self.parts.len() == self.limits.parts {
            return Err(broken(format!("a message of more than {} parts", self.limits.parts)));
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "../../tests/inside/decoder.rs"]
mod tests;
