//! A peer that sends arbitrary bytes over an ordinary socket.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::Duration;

/// The greeting of a ZMTP 3.0 peer with the mechanism NULL.
pub fn greeting() -> Vec<u8> {
    let mut bytes = vec![0; 64];
    (bytes[0], bytes[9], bytes[10]) = (0xff, 0x7f, 3);
    bytes[12..16].copy_from_slice(b"NULL");
    bytes
}

/// A frame with these flags, in its shortest form.
pub fn frame(flags: u8, body: &[u8]) -> Vec<u8> {
    match u8::try_from(body.len()) {
        Ok(size) => [&[flags, size], body].concat(),
        Err(_) => [&[flags | 2][..], &(body.len() as u64).to_be_bytes(), body].concat(),
    }
}

/// The head of a frame that claims a size.
pub fn claim(flags: u8, size: u64) -> Vec<u8> {
    [&[flags | 2][..], &size.to_be_bytes()].concat()
}

pub fn ready(socket: &str) -> Vec<u8> {
    let size = (socket.len() as u32).to_be_bytes();
    frame(4, &[b"\x05READY\x0bSocket-Type", &size[..], socket.as_bytes()].concat())
}

pub fn message(parts: &[&[u8]]) -> Vec<u8> {
    let last = parts.len() - 1;
    parts.iter().enumerate().flat_map(|(at, part)| frame(u8::from(at < last), part)).collect()
}

pub struct RawPeer(pub TcpStream);

impl RawPeer {
    pub fn connect(endpoint: &str) -> Self {
        Self::of(TcpStream::connect(endpoint.strip_prefix("tcp://").unwrap()).unwrap())
    }

    pub fn accept(listener: &TcpListener) -> Self {
        Self::of(listener.accept().unwrap().0)
    }

    fn of(stream: TcpStream) -> Self {
        // Anything slower is a failure.
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.set_write_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.set_nodelay(true).unwrap();
        RawPeer(stream)
    }

    /// A peer that has completed the handshake, with a socket of this type.
    pub fn shake_hands(mut self, socket: &str) -> Self {
        self.send(&[greeting(), ready(socket)].concat()).unwrap();
        self.0.read_exact(&mut [0; 64]).unwrap();
        let (flags, body) = self.frame().unwrap();
        assert_eq!((flags, &body[..6]), (4, &b"\x05READY"[..]));
        self
    }

    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)
    }

    /// Sends the bytes repeatedly until the connection is closed, or `times` times.
    pub fn flood(&mut self, bytes: &[u8], times: usize) -> usize {
        (0..times).find(|_| self.send(bytes).is_err()).unwrap_or(times)
    }

    /// The flags and the body of the next frame.
    pub fn frame(&mut self) -> io::Result<(u8, Vec<u8>)> {
        let mut flags = [0];
        self.0.read_exact(&mut flags)?;
        let mut size = [0; 8];
        let from = if flags[0] & 2 == 0 { 7 } else { 0 };
        self.0.read_exact(&mut size[from..])?;
        let mut body = vec![0; u64::from_be_bytes(size) as usize];
        self.0.read_exact(&mut body)?;
        Ok((flags[0] & !2, body))
    }

    /// The next message, without the commands before it.
    pub fn message(&mut self) -> Vec<Vec<u8>> {
        let mut parts = Vec::new();
        loop {
            let (flags, body) = self.frame().unwrap();
            if flags & 4 == 0 {
                parts.push(body);
                if flags & 1 == 0 {
                    return parts;
                }
            }
        }
    }

    /// Waits until the other side has closed the connection.
    pub fn await_close(mut self) {
        let _ = self.0.shutdown(Shutdown::Write);
        self.await_hang_up();
    }

    /// True if the other side closes the connection in this time.
    pub fn is_closed_within(&mut self, time: Duration) -> bool {
        self.0.set_read_timeout(Some(time)).unwrap();
        loop {
            match self.0.read(&mut [0; 4096]) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => return !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
            }
        }
    }

    /// The same, without closing this side.
    pub fn await_hang_up(&mut self) {
        let mut bytes = [0; 4096];
        loop {
            match self.0.read(&mut bytes) {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    panic!("the connection is still open")
                }
                Err(_) => return,
            }
        }
    }
}
