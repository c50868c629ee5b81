//! Interoperability with libzmq through pyzmq, in both directions: subscribers, publishers like vLLM's, and replays.
//!
//! `KVTIDE_ZMQ_PYTHON` is a python with `pyzmq`; if it is not set, `python3` is tried.

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use kvtide_router::{
    Batch, BlockHash, Event, Followed, Follower, FollowerOptions, Publisher, PublisherOptions, StoredBlocks, encode,
};
use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::skip::skipped;

/// A process with a libzmq socket, driven line by line.
struct Peer {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Peer {
    fn start(arguments: &[&str]) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/router/peer.py");
        let mut child = Command::new(python())
            .arg(script)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Peer { child, input, output: BufReader::new(output).lines() }
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    /// The next line; it fails when the process ends.
    fn line(&mut self) -> String {
        self.output.next().expect("the peer goes on").unwrap()
    }

    /// The parts of the next message, in hexadecimal digits.
    fn parts(&mut self) -> Vec<String> {
        self.line().split(' ').map(str::to_owned).collect()
    }
}

fn python() -> String {
    std::env::var("KVTIDE_ZMQ_PYTHON").unwrap_or_else(|_| "python3".to_owned())
}

fn is_installed() -> bool {
    let probe = Command::new(python()).args(["-c", "import zmq"]).stderr(Stdio::null()).status();
    let is_there = probe.is_ok_and(|status| status.success());
    if !is_there {
        skipped("pyzmq is not installed");
    }
    is_there
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn stored(number: u64, tokens: usize) -> Event {
    let hashes = vec![BlockHash::Number(number)];
    let tokens = vec![number as u32; tokens];
    Event::Stored(StoredBlocks { hashes, tokens, block_size: 4, ..StoredBlocks::default() })
}

async fn bind() -> Publisher {
    let replay_endpoint = Some("tcp://127.0.0.1:0".to_owned());
    let options = PublisherOptions { replay_endpoint, topic: "kv@pod".to_owned(), ..PublisherOptions::default() };
    Publisher::bind(&Handle::current(), options).await.unwrap()
}

/// Publishes until a subscriber has received a batch. Returns the number of the next batch.
fn await_subscriber(publisher: &Publisher, peer: &mut Peer) -> u64 {
    peer.tell("poll");
    while peer.line() != "heard" {
        publisher.publish(vec![Event::Cleared]).unwrap();
        peer.tell("poll");
    }
    // Until it has received everything published so far.
    let last = publisher.publish(vec![Event::Cleared]).unwrap();
    peer.tell("receive");
    while peer.parts()[1] != hex(&last.to_be_bytes()) {
        peer.tell("receive");
    }
    last + 1
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscribers_of_libzmq_get_what_is_published() {
    if !is_installed() {
        return;
    }
    let publisher = bind().await;
    for kind in ["SUB", "XSUB"] {
        let mut peer = Peer::start(&["subscribe", kind, publisher.endpoint(), "kv@", "other"]);
        let first = await_subscriber(&publisher, &mut peer);
        // From empty to some megabytes, in frames of each form.
        for (number, tokens) in (first..).zip([0, 1, 40, 50, 60, 1000, 70_000, 1_000_000, 3]) {
            let event = vec![stored(u64::MAX - number, tokens)];
            assert_eq!(publisher.publish(event).unwrap(), number);
            peer.tell("receive");
            let parts = peer.parts();
            assert_eq!((parts[0].as_str(), &parts[1]), (hex(b"kv@pod").as_str(), &hex(&number.to_be_bytes())));
            assert_eq!(parts.len(), 3);
            // A time of 9 bytes after the head; then the encoded events.
            let whole = hex(&encode(&Batch { events: vec![stored(u64::MAX - number, tokens)], ..Batch::default() }));
            assert_eq!((parts[2].len(), &parts[2][20..]), (whole.len(), &whole[20..]));
        }
        // Heartbeats are answered: the connection survives several heartbeat intervals of silence.
        peer.tell("rest");
        assert_eq!(peer.line(), "connected once");
        peer.tell("unsubscribe kv@");
        peer.tell("subscribe kv@pod");
        await_subscriber(&publisher, &mut peer);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dealers_and_requesters_of_libzmq_get_replays() {
    if !is_installed() {
        return;
    }
    let publisher = bind().await;
    for number in 0..50 {
        publisher.publish(vec![stored(number, number as usize * 100)]).unwrap();
    }
    let endpoint = publisher.replay_endpoint().unwrap();
    for (kind, first, count) in [("DEALER", 0, 51), ("DEALER", 45, 6), ("DEALER", 50, 1), ("REQ", 7, 1), ("REQ", 50, 1)]
    {
        let mut peer = Peer::start(&["ask", kind, endpoint, &first.to_string()]);
        for at in 0..count {
            let parts = peer.parts();
            let number = if first + at == 50 { u64::MAX } else { first + at };
            assert_eq!((parts.len(), &parts[0]), (2, &hex(&number.to_be_bytes())), "{kind} from {first}");
            assert_eq!(parts[1].is_empty(), number == u64::MAX);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn publishers_of_libzmq_are_followed() {
    if !is_installed() {
        return;
    }
    for kind in ["PUB", "XPUB"] {
        let mut peer = Peer::start(&["publish", kind]);
        let (endpoint, replay_endpoint) = (peer.line(), peer.line());
        let options = FollowerOptions {
            endpoint,
            replay_endpoint: Some(replay_endpoint),
            topic: "kv@".to_owned(),
            patience: Duration::from_secs(30),
            silence: Duration::from_millis(100),
            ..FollowerOptions::default()
        };
        // Before the follower starts; sent, or only kept, as if the network had lost them.
        let batch = |number: u64| Batch {
            time: number as f64,
            events: vec![stored(number, [1, 100, 30_000][number as usize % 3])],
            rank: None,
        };
        let tell = |peer: &mut Peer, number: u64| {
            let verb = if number % 5 == 3 { "lose" } else { "send" };
            peer.tell(&format!("{verb} {}", hex(&encode(&batch(number)))));
        };
        (0..10).for_each(|number| tell(&mut peer, number));
        let mut follower = Follower::start(&Handle::current(), options).unwrap();
        for number in 0..60 {
            if number >= 10 {
                tell(&mut peer, number);
            }
            let followed = timeout(Duration::from_secs(60), follower.next()).await.expect("it comes").unwrap();
            assert_eq!(followed, Followed::Batch { number, batch: batch(number) }, "{kind}");
        }
        // Its heartbeats are answered while nothing else happens.
        peer.tell("rest");
        assert_eq!(peer.line(), "connected once");
    }
}
