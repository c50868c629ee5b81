//! Frames as bytes, and the content of commands. No I/O.

use std::io;

use super::broken;

/// Another part of the message follows.
pub(super) const MORE: u8 = 1;
/// The size has eight bytes.
pub(super) const LONG: u8 = 2;
/// The frame is a command.
pub(super) const COMMAND: u8 = 4;

/// The type of a socket. It determines the allowed types of its peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SocketType {
    Pub,
    Sub,
    Router,
    Dealer,
}

impl SocketType {
    fn name(self) -> &'static str {
        match self {
            SocketType::Pub => "PUB",
            SocketType::Sub => "SUB",
            SocketType::Router => "ROUTER",
            SocketType::Dealer => "DEALER",
        }
    }

    fn peers(self) -> &'static [&'static str] {
        match self {
            SocketType::Pub => &["SUB", "XSUB"],
            SocketType::Sub => &["PUB", "XPUB"],
            SocketType::Router => &["REQ", "DEALER", "ROUTER"],
            SocketType::Dealer => &["REP", "DEALER", "ROUTER"],
        }
    }

    /// The READY command of this socket, as a frame.
    pub(super) fn ready(self) -> Vec<u8> {
        let mut body = b"\x05READY\x0bSocket-Type".to_vec();
        body.extend((self.name().len() as u32).to_be_bytes());
        body.extend(self.name().as_bytes());
        if matches!(self, SocketType::Dealer) {
            body.extend(b"\x08Identity\0\0\0\0");
        }
        let mut frame = Vec::new();
        write_head(&mut frame, COMMAND, body.len());
        frame.extend(body);
        frame
    }

    /// Checks a peer's READY command. Returns an error if this socket does not talk to that type.
    pub(super) fn check(self, command: &[u8]) -> io::Result<()> {
        let mut properties = match Command::parse(command)? {
            Command::Ready(properties) => properties,
            Command::Error(reason) => {
                let reason = String::from_utf8_lossy(reason);
                return Err(broken(format!("the peer refuses the connection: {}", reason.escape_default())));
            }
            _ => return Err(broken("the peer's first command is not READY")),
        };
        let mut kind = None;
        while !properties.is_empty() {
            let name = take_short(&mut properties)?;
            let size = properties.split_off(..4).ok_or_else(|| broken("a property without a size"))?;
            let size = u32::from_be_bytes(size.try_into().expect("four bytes")) as usize;
            let value = properties.split_off(..size).ok_or_else(|| broken("a truncated property"))?;
            if name.eq_ignore_ascii_case(b"Socket-Type") {
                kind = Some(value);
            }
        }
        let kind = String::from_utf8_lossy(kind.unwrap_or_default());
        if self.peers().contains(&&*kind) {
            return Ok(());
        }
        Err(broken(format!("the peer is {}, expected {}", kind.escape_default(), self.peers().join(" or "))))
    }
}

/// A command of a peer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command<'a> {
    /// The peer's properties.
    Ready(&'a [u8]),
    Error(&'a [u8]),
    Subscribe(&'a [u8]),
    Cancel(&'a [u8]),
    /// A heartbeat, with the context that the answer repeats.
    Ping(&'a [u8]),
    /// An unknown command, which is ignored.
    Other,
}

/// The most bytes of a heartbeat's context.
const CONTEXT_MAX: usize = 16;

impl<'a> Command<'a> {
    pub(crate) fn parse(mut body: &'a [u8]) -> io::Result<Self> {
        let name = take_short(&mut body)?;
        Ok(match name {
            b"READY" => Command::Ready(body),
            b"ERROR" => Command::Error(take_short(&mut body)?),
            b"SUBSCRIBE" => Command::Subscribe(body),
            b"CANCEL" => Command::Cancel(body),
            b"PING" => match body.split_at_checked(2) {
                Some((_, context)) if context.len() <= CONTEXT_MAX => Command::Ping(context),
                _ => return Err(broken("a PING without a time to live, or with a long context")),
            },
            _ => Command::Other,
        })
    }
}

/// Takes the bytes after a one-byte size.
fn take_short<'a>(bytes: &mut &'a [u8]) -> io::Result<&'a [u8]> {
    let size = bytes.split_off_first().ok_or_else(|| broken("a truncated command"))?;
    bytes.split_off(..usize::from(*size)).ok_or_else(|| broken("a truncated command"))
}

/// The answer to a heartbeat, as a frame.
pub(crate) fn pong(context: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    write_head(&mut frame, COMMAND, 5 + context.len());
    frame.extend(b"\x04PONG");
    frame.extend(context);
    frame
}

/// Appends the head of a frame.
pub(super) fn write_head(out: &mut Vec<u8>, flags: u8, size: usize) {
    match u8::try_from(size) {
        Ok(size) => out.extend([flags, size]),
        Err(_) => {
            out.push(flags | LONG);
            out.extend((size as u64).to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_says_which_socket_and_only_its_peers_are_taken() {
        assert_eq!(SocketType::Pub.ready(), b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03PUB");
        let of = |name: &str| [b"\x05READY\x0bsocket-TYPE\0\0\0", &[name.len() as u8][..], name.as_bytes()].concat();
        for (socket, peers) in [
            (SocketType::Pub, &["SUB", "XSUB"][..]),
            (SocketType::Sub, &["PUB", "XPUB"]),
            (SocketType::Router, &["REQ", "DEALER", "ROUTER"]),
            (SocketType::Dealer, &["REP", "DEALER", "ROUTER"]),
        ] {
            for peer in ["PUB", "XPUB", "SUB", "XSUB", "REQ", "REP", "DEALER", "ROUTER", "PAIR", "", "pub", "\u{1b}"] {
                assert_eq!(socket.check(&of(peer)).is_ok(), peers.contains(&peer), "{socket:?} {peer}");
            }
        }
    }

    #[test]
    fn commands_that_are_cut_short_are_refused() {
        let ready = b"\x05READY\x0bSocket-Type\0\0\0\x03SUB\x01x\0\0\0\0";
        SocketType::Pub.check(ready).unwrap();
        // A command that ends exactly at a property is complete.
        for length in (0..ready.len()).filter(|&length| length != ready.len() - 6) {
            assert!(SocketType::Pub.check(&ready[..length]).is_err(), "{length}");
        }
        assert_eq!(Command::parse(b"\x04PING\0\x05abc").unwrap(), Command::Ping(b"abc"));
        assert_eq!(pong(b"abc"), b"\x04\x08\x04PONGabc");
        for wrong in [&b"\x04PING\0"[..], b"\x04PING\0\0aaaaaaaaaaaaaaaaa", b"", b"\xffPING", b"\x05ERROR\x09no"] {
            assert!(Command::parse(wrong).is_err());
        }
    }
}
