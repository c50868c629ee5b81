//! Misbehaving peers of a follower: a publisher that does not speak the protocol, or that sends without end.

use std::net::TcpListener;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use kvtide_router::{Batch, Event, Followed, Follower, FollowerOptions, StoredBlocks, encode};

use crate::raw_peer::{RawPeer, claim, frame, greeting, message, ready};
use crate::support::{Numbers, seed};
use crate::watched::Watch;

const MIB: usize = 1 << 20;

/// A listener for a follower to connect to.
fn listen() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("tcp://{}", listener.local_addr().unwrap());
    (listener, endpoint)
}

fn follow(watch: &Watch, endpoint: &str, options: FollowerOptions) -> Follower {
    let options = FollowerOptions { endpoint: endpoint.to_owned(), patience: Duration::from_secs(60), ..options };
    Follower::start(watch.runtime().handle(), options).unwrap()
}

fn next(watch: &Watch, follower: &mut Follower) -> Option<u64> {
    let next = async { tokio::time::timeout(Duration::from_secs(60), follower.next()).await };
    match watch.run(next).expect("something comes").expect("a follower") {
        Followed::Batch { number, .. } => Some(number),
        Followed::Lost => None,
    }
}

fn batch(bytes: usize) -> Vec<u8> {
    let stored = StoredBlocks { tokens: vec![1; bytes], block_size: bytes as u32, ..StoredBlocks::default() };
    encode(&Batch { events: vec![Event::Stored(stored)], ..Batch::default() })
}

fn event(number: u64, batch: &[u8]) -> Vec<u8> {
    message(&[b"kv@pod", &number.to_be_bytes(), batch])
}

/// A publisher that sends one item of `sent` per connection, waits until the follower closes it, and finally behaves
/// correctly.
fn misbehave(listener: TcpListener, sent: Vec<Vec<u8>>) -> JoinHandle<RawPeer> {
    thread::spawn(move || {
        for bytes in sent {
            let mut peer = RawPeer::accept(&listener);
            let _ = peer.send(&bytes);
            peer.await_close();
        }
        let mut peer = RawPeer::accept(&listener).shake_hands("PUB");
        assert_eq!(peer.message(), [b"\x01kv"]);
        peer.send(&event(0, &batch(1))).unwrap();
        peer
    })
}

#[test]
fn a_publisher_that_claims_sizes_or_is_none_is_left_and_tried_again() {
    let mut watch = Watch::start();
    let before = [greeting(), ready("PUB")].concat();
    let mut sent = vec![
        b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\nServer: some\r\n\r\n".to_vec(),
        vec![],
        greeting(),
        [greeting(), ready("SUB")].concat(),
        [greeting(), ready("XPUB"), frame(4, b"")].concat(),
        [&before[..], &frame(4, b"\x04PING")].concat(),
        [&before[..], &frame(1, b"").repeat(17)].concat(),
        [greeting(), claim(4, 1 << 36)].concat(),
    ];
    for size in [(16 << 20) + 1, 3 << 30, 1 << 36, 1 << 63, u64::MAX] {
        sent.push([&before[..], &claim(0, size)].concat());
        sent.push([&before[..], &claim(1, size), &[0; 100_000]].concat());
    }
    for some in sent.chunks(3) {
        let (listener, endpoint) = listen();
        let publisher = misbehave(listener, some.to_vec());
        watch.mark();
        let start = Instant::now();
        let mut follower = follow(&watch, &endpoint, FollowerOptions { topic: "kv".to_owned(), ..Default::default() });
        assert_eq!(next(&watch, &mut follower), Some(0));
        // 50 ms after the first attempt, then doubling: the follower does not reconnect in a busy loop.
        assert!(start.elapsed() > Duration::from_millis(50) * ((1 << some.len()) - 1));
        assert!(watch.peak() < 2 * MIB, "{} held", watch.peak());
        drop((follower, publisher.join().unwrap()));
    }
}

#[test]
fn a_publisher_that_sends_without_end_fills_the_queue_and_no_more() {
    let mut watch = Watch::start();
    let (listener, endpoint) = listen();
    let options = FollowerOptions { queue_bytes: 4 * MIB, ..Default::default() };
    let mut follower = follow(&watch, &endpoint, options);
    let mut peer = RawPeer::accept(&listener).shake_hands("PUB");
    watch.mark();
    let large = batch(MIB);
    // Until the connection is full.
    peer.0.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    let sent = (0..1000).find(|&number| peer.send(&event(number, &large)).is_err());
    assert!(sent.is_some_and(|sent| sent > 4), "{sent:?}");
    // The batch and its message on this side, the queue, and three batches on their way into it, each at most at twice
    // its size.
    assert!(watch.peak() < 20 * MIB, "{} held", watch.peak());
    for number in 0..4 {
        assert_eq!(next(&watch, &mut follower), Some(number));
    }
}

#[test]
fn a_message_of_many_bytes_ends_at_the_bound() {
    let mut watch = Watch::start();
    let (listener, endpoint) = listen();
    let _follower = follow(&watch, &endpoint, FollowerOptions::default());
    for part in [vec![7; MIB], vec![7; 15 * MIB]] {
        let mut peer = RawPeer::accept(&listener).shake_hands("PUB");
        let part = frame(1, &part);
        watch.mark();
        let sent = peer.flood(&part, 100);
        assert!(sent * part.len() < 40 * MIB);
        // Up to 16 MiB of parts, and a buffer that has grown to at most twice one part.
        assert!(watch.peak() < 64 * MIB, "{} held", watch.peak());
    }
}

#[test]
fn a_replay_that_claims_or_never_ends_is_left() {
    let mut watch = Watch::start();
    let (listener, endpoint) = listen();
    let (replays, replay_endpoint) = listen();
    let ready = [greeting(), ready("ROUTER")].concat();
    let sent = [
        vec![0; 64],
        [&ready[..], &claim(0, 1 << 36)].concat(),
        [&ready[..], &frame(1, b"").repeat(17)].concat(),
        [&ready[..], &message(&[b"", &[0; 7], b"x"])].concat(),
        [&ready[..], &event(5, &batch(1)), &event(5, &batch(2)), &event(3, &batch(1)).repeat(100)].concat(),
    ];
    let options = FollowerOptions {
        replay_endpoint: Some(replay_endpoint),
        silence: Duration::from_millis(20),
        ..FollowerOptions::default()
    };
    let mut follower = follow(&watch, &endpoint, options);
    let mut peer = RawPeer::accept(&listener).shake_hands("PUB");
    watch.mark();
    for bytes in sent {
        let mut replay = RawPeer::accept(&replays);
        let _ = replay.send(&bytes);
        replay.await_close();
    }
    // The follower drops the first replay because it does not begin with the last seen batch, and the second because
    // its numbers do not ascend.
    let again = event(0, &batch(1)).repeat(1000);
    for _ in 0..2 {
        let mut replay = RawPeer::accept(&replays).shake_hands("ROUTER");
        assert!(replay.flood(&again, 10_000) < 10_000, "the same batch again and again");
    }
    // Meanwhile the live connection continues.
    peer.send(&event(9, &batch(1))).unwrap();
    let answer = thread::spawn(move || while RawPeer::accept(&replays).0.peek(&mut [0]).is_ok() {});
    while next(&watch, &mut follower) != Some(9) {}
    assert!(watch.peak() < 2 * MIB, "{} held", watch.peak());
    drop((follower, peer, answer));
}

#[test]
fn damaged_streams_harm_nobody() {
    let mut watch = Watch::start();
    let seed = seed();
    println!("KVTIDE_SEED={seed}");
    let mut numbers = Numbers(seed);
    let plain = batch(10);
    for _ in 0..20 {
        // A new follower each time, since retry delays grow.
        let (listener, endpoint) = listen();
        let mut follower = follow(&watch, &endpoint, FollowerOptions { topic: "kv".to_owned(), ..Default::default() });
        let mut sent = Vec::new();
        for _ in 0..3 {
            let mut bytes = [greeting(), ready("PUB")].concat();
            for number in 0..numbers.below(10) {
                bytes.extend(event(number, &plain));
            }
            for _ in 0..1 + numbers.below(8) {
                let at = numbers.below(bytes.len() as u64) as usize;
                bytes[at] = numbers.next() as u8;
            }
            sent.push(bytes);
        }
        watch.mark();
        let publisher = misbehave(listener, sent);
        let peer = publisher.join().unwrap();
        while next(&watch, &mut follower) != Some(0) {}
        assert!(watch.peak() < 2 * MIB, "{} held, KVTIDE_SEED={seed}", watch.peak());
        drop(peer);
    }
}
