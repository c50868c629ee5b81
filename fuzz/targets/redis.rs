//! Replies of a Redis server, over connections of the loopback: to AUTH, `CLUSTER SLOTS` and the commands of a store.
//!
//! ```text
//! first byte   1 a right handshake comes first   2 a Cluster   4 a list of slots as drawn   8 replies in halves
//! rest         replies, one for each request: bits of the length and of keeping the connection open, then the bytes
//! ```
//!
//! A Cluster's client connects to where it is told. So only the drawn list of slots has arrays, and it has no other
//! host than this one, with this server's port or one that refuses.
#![no_main]

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use kvtide_tiers::{GateOptions, GuardOptions, Redis, RedisOptions, Store};
use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use tokio::runtime::{Builder, Runtime};

/// The time of a call, of an attempt, and of making a connection.
const CALL: Duration = Duration::from_millis(60);
const ATTEMPT: Duration = Duration::from_millis(30);

/// A call that lasts longer than this is late on any machine.
const LATE: Duration = Duration::from_secs(10);

/// The most bytes of a value.
const VALUE_MAX: usize = 200;

struct Rig {
    runtime: Runtime,
    listener: TcpListener,
    port: u16,
    /// It is bound and refuses connections.
    refusing: u16,
}

fn rig() -> &'static Rig {
    static MADE: OnceLock<Rig> = OnceLock::new();
    MADE.get_or_init(|| {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let bound = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
        bound.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("a free port");
        let refusing = bound.local_addr().ok().and_then(|address| address.as_socket()).expect("an address").port();
        std::mem::forget(bound);
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        Rig { runtime, listener, port, refusing }
    })
}

/// A reply, and what follows it.
struct Reply {
    bytes: Vec<u8>,
    /// The connection stays open.
    stays: bool,
}

/// The server's replies, in the order of requests.
struct Script {
    is_right: bool,
    in_halves: bool,
    slots: Vec<u8>,
    replies: Mutex<VecDeque<Reply>>,
    is_over: AtomicBool,
}

fuzz_target!(|data: &[u8]| {
    let Some((&kind, bytes)) = data.split_first() else { return };
    let is_cluster = kind & 2 != 0;
    let Ok(script) = script(kind, is_cluster, &mut Unstructured::new(bytes)) else { return };
    let Rig { listener, port, .. } = rig();
    std::thread::scope(|scope| {
        scope.spawn(|| serve(listener, &script));
        ask(is_cluster);
        script.is_over.store(true, Ordering::Release);
        // Wakes the server, which waits for a connection.
        let woken = TcpStream::connect(("127.0.0.1", *port));
        let _ = woken.map(|stream| socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)));
    });
});

fn script(kind: u8, is_cluster: bool, input: &mut Unstructured<'_>) -> Result<Script> {
    let slots = match kind & 4 != 0 {
        true => slots(input)?,
        false => list(&[(0, 16383, "127.0.0.1", i64::from(rig().port))]),
    };
    let mut replies = VecDeque::new();
    while !input.is_empty() {
        let head: u8 = input.arbitrary()?;
        let mut bytes = input.bytes(usize::from(head & 0x7f).min(input.len()))?.to_vec();
        if is_cluster {
            bytes.iter_mut().filter(|byte| **byte == b'*').for_each(|byte| *byte = b'+');
        }
        replies.push_back(Reply { bytes, stays: head & 0x80 != 0 });
    }
    let (is_right, in_halves, replies) = (kind & 1 != 0, kind & 8 != 0, Mutex::new(replies));
    Ok(Script { is_right, in_halves, slots, replies, is_over: AtomicBool::new(false) })
}

/// Draws an answer to `CLUSTER SLOTS`.
fn slots(input: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let mut ranges = Vec::new();
    for _ in 0..input.int_in_range(0..=4)? {
        let slot = |input: &mut Unstructured<'_>| match input.int_in_range(0..=3)? {
            0 => Ok(*input.choose(&[-1, 0, 1, 8191, 16383, 16384, 65535, 65536, i64::MAX, i64::MIN])?),
            _ => input.int_in_range(0..=16383),
        };
        // No other name: a client would look it up.
        let host = *input.choose(&["127.0.0.1", "127.0.0.1", "", "127.0.0.1\0"])?;
        let [port, refusing] = [rig().port, rig().refusing].map(i64::from);
        let port = *input.choose(&[port, port, refusing, -1, 65536, i64::MAX])?;
        ranges.push((slot(input)?, slot(input)?, host, port));
    }
    Ok(list(&ranges))
}

fn list(ranges: &[(i64, i64, &str, i64)]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", ranges.len()).into_bytes();
    for (first, last, host, port) in ranges {
        let range = format!("*3\r\n:{first}\r\n:{last}\r\n*2\r\n${}\r\n{host}\r\n:{port}\r\n", host.len());
        bytes.extend(range.as_bytes());
    }
    bytes
}

/// Serves one connection after the other until the script is over.
fn serve(listener: &TcpListener, script: &Script) {
    std::thread::scope(|scope| {
        loop {
            let Ok((stream, _)) = listener.accept() else { return };
            if script.is_over.load(Ordering::Acquire) {
                return;
            }
            scope.spawn(move || talk(stream, script));
        }
    });
}

/// Answers the requests of a connection: a request is what one read brings.
fn talk(mut stream: TcpStream, script: &Script) {
    let _ = socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO));
    let _ = stream.set_nodelay(true);
    let mut request = vec![0; 1 << 14];
    while let Ok(count @ 1..) = stream.read(&mut request) {
        let asks = |word: &[u8]| request[..count].windows(word.len()).any(|bytes| bytes == word);
        let reply = if script.is_right && asks(b"AUTH") {
            Reply { bytes: b"+OK\r\n".to_vec(), stays: true }
        } else if script.is_right && asks(b"SLOTS") {
            Reply { bytes: script.slots.clone(), stays: true }
        } else {
            let next = script.replies.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            next.unwrap_or(Reply { bytes: Vec::new(), stays: false })
        };
        let half = if script.in_halves { reply.bytes.len() / 2 } else { 0 };
        let halves = [&reply.bytes[..half], &reply.bytes[half..]];
        if halves.iter().try_for_each(|bytes| stream.write_all(bytes)).is_err() {
            return;
        }
        if !reply.stays {
            let _ = stream.shutdown(Shutdown::Write);
            // The client reads what was sent before it sees the end.
            let _ = stream.read_to_end(&mut Vec::new());
            return;
        }
    }
}

/// Makes the calls of a store.
fn ask(is_cluster: bool) {
    let Rig { runtime, port, .. } = rig();
    let options = RedisOptions {
        urls: vec![format!("redis://user:password@127.0.0.1:{port}")],
        is_cluster,
        connections: 1,
        connect_timeout: ATTEMPT,
        ..RedisOptions::default()
    };
    let gate = GateOptions { failures_max: 100, ..GateOptions::default() };
    let guard = GuardOptions { gate, attempts_max: 1, attempt_timeout: ATTEMPT, ..GuardOptions::default() };
    let store = Redis::guarded(&options, guard, runtime.handle().clone(), None).expect("a store");
    let keys: Vec<String> = (0..3).map(|at| format!("key-{at}")).collect();
    let entries: Vec<(String, &[u8])> = keys.iter().map(|key| (key.clone(), &b"value"[..])).collect();
    let start = Instant::now();
    let deadline = || Instant::now() + CALL;
    for _ in 0..2 {
        let values = store.get(&keys, VALUE_MAX, deadline());
        assert_eq!(values.len(), keys.len());
        let lengths = || values.iter().flatten().map(Vec::len);
        assert!(lengths().all(|length| (1..=VALUE_MAX).contains(&length)), "{:?}", lengths().max());
        assert_eq!(store.has(&keys, deadline()).len(), keys.len());
        assert!(store.put(&entries, deadline()) <= entries.len());
        store.remove(&keys, deadline());
    }
    assert!(start.elapsed() < LATE, "eight calls last {:?}", start.elapsed());
}
