//! The bytes of a ZeroMQ peer, over a connection of the loopback: greeting, READY, then messages and commands.
//!
//! The first byte picks the socket's type; its highest bit puts a right greeting and READY in front, so that what follows is read.
#![no_main]

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::OnceLock;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use tokio::runtime::{Builder, Runtime};

#[path = "../../crates/kvtide-router/src/zmtp/mod.rs"]
#[allow(dead_code, unused_imports, reason = "the publisher uses the rest")]
mod zmtp;

use zmtp::{Command, Endpoint, Limits, Received, SocketType, connect};

const LIMITS: Limits = Limits { parts: 4, bytes: 2000 };
const TYPES: [(SocketType, &[u8]); 4] = [
    (SocketType::Pub, b"SUB"),
    (SocketType::Sub, b"PUB"),
    (SocketType::Router, b"DEALER"),
    (SocketType::Dealer, b"ROUTER"),
];

struct Rig {
    runtime: Runtime,
    listener: TcpListener,
    endpoint: Endpoint,
}

fn rig() -> &'static Rig {
    static MADE: OnceLock<Rig> = OnceLock::new();
    MADE.get_or_init(|| {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        Rig {
            runtime: Builder::new_current_thread().enable_all().build().expect("a runtime"),
            listener,
            endpoint: Endpoint::parse(&format!("tcp://127.0.0.1:{port}")).expect("an endpoint"),
        }
    })
}

fn handshake(peer: &[u8]) -> Vec<u8> {
    let mut bytes = [0; 64];
    (bytes[0], bytes[9], bytes[10]) = (0xff, 0x7f, 3);
    bytes[12..16].copy_from_slice(b"NULL");
    let mut body = b"\x05READY\x0bSocket-Type".to_vec();
    body.extend((peer.len() as u32).to_be_bytes());
    body.extend(peer);
    [&bytes[..], &[4, body.len() as u8], &body].concat()
}

fuzz_target!(|data: &[u8]| {
    let Some((&kind, bytes)) = data.split_first() else { return };
    let (socket, peer) = TYPES[usize::from(kind) % TYPES.len()];
    let sent = if kind & 0x80 != 0 { [&handshake(peer), bytes].concat() } else { bytes.to_vec() };
    let Rig { runtime, listener, endpoint } = rig();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            let _ = socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO));
            let _ = stream.write_all(&sent).and_then(|()| stream.shutdown(std::net::Shutdown::Write));
            let _ = stream.read_to_end(&mut Vec::new());
        });
        runtime.block_on(receive(endpoint, socket));
    });
});

/// Receives until the connection ends, as it must: the peer closes it.
async fn receive(endpoint: &Endpoint, socket: SocketType) {
    let Ok((mut incoming, mut outgoing)) = connect(endpoint, socket, LIMITS, Duration::from_secs(5)).await else {
        return;
    };
    loop {
        match incoming.next().await {
            Ok(Received::Message(parts)) => {
                assert!(
                    parts.len() <= LIMITS.parts && parts.iter().map(|part| part.len()).sum::<usize>() <= LIMITS.bytes
                );
            }
            Ok(Received::Command(body)) => {
                assert!(body.len() <= zmtp::COMMAND_BYTES_MAX);
                if let Ok(Command::Ping(context)) = Command::parse(&body) {
                    let _ = outgoing.pong(context).await;
                }
            }
            Err(_) => return,
        }
    }
}
