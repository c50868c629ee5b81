//! Misbehaving peers of a publisher: anything can connect to it.

use std::time::Duration;

use kvtide_router::{Event, Followed, Follower, FollowerOptions, Publisher, PublisherOptions, StoredBlocks};

use crate::raw_peer::{RawPeer, claim, frame, greeting, message, ready};
use crate::support::{Numbers, seed};
use crate::watched::Watch;

const MIB: usize = 1 << 20;

fn bind(watch: &Watch, options: PublisherOptions) -> Publisher {
    let replay_endpoint = Some("tcp://127.0.0.1:0".to_owned());
    let options = PublisherOptions { replay_endpoint, topic: "kv@pod".to_owned(), ..options };
    watch.run(Publisher::bind(watch.runtime().handle(), options)).unwrap()
}

/// The two endpoints, and the socket types that connect to them.
fn endpoints(publisher: &Publisher) -> [(String, &'static str); 2] {
    [(publisher.endpoint().to_owned(), "SUB"), (publisher.replay_endpoint().unwrap().to_owned(), "DEALER")]
}

/// Checks that a new follower still receives everything, from the first batch on, including one published now.
fn serves(watch: &Watch, publisher: &Publisher) {
    let options = FollowerOptions {
        endpoint: publisher.endpoint().to_owned(),
        replay_endpoint: publisher.replay_endpoint().map(str::to_owned),
        patience: Duration::from_secs(60),
        silence: Duration::from_millis(100),
        ..FollowerOptions::default()
    };
    let last = publisher.publish(vec![Event::Cleared]).unwrap();
    let mut follower = Follower::start(watch.runtime().handle(), options).unwrap();
    watch.run(async {
        for expected in 0..=last {
            let followed = tokio::time::timeout(Duration::from_secs(60), follower.next()).await.expect("it is served");
            assert!(matches!(followed, Some(Followed::Batch { number, .. }) if number == expected));
        }
    });
}

#[test]
fn a_claimed_size_costs_nothing() {
    let mut watch = Watch::start();
    let publisher = bind(&watch, PublisherOptions::default());
    for (endpoint, socket) in endpoints(&publisher) {
        for size in [(16 << 10) + 1, 1 << 24, 1 << 31, 1 << 32, 1 << 36, 1 << 62, 1 << 63, u64::MAX] {
            for flags in [0, 1, 4] {
                watch.mark();
                let mut peer = RawPeer::connect(&endpoint).shake_hands(socket);
                peer.send(&claim(flags, size)).unwrap();
                peer.await_hang_up();
                let mut peer = RawPeer::connect(&endpoint);
                peer.send(&[greeting(), claim(flags, size)].concat()).unwrap();
                peer.await_hang_up();
                assert!(watch.peak() < MIB, "{size} bytes claimed: {} held", watch.peak());
            }
        }
    }
    serves(&watch, &publisher);
}

#[test]
fn what_is_not_zmtp_without_a_mechanism_is_closed() {
    let mut watch = Watch::start();
    let publisher = bind(&watch, PublisherOptions::default());
    let with = |at: usize, bytes: &[u8]| {
        let mut greeting = greeting();
        greeting[at..at + bytes.len()].copy_from_slice(bytes);
        greeting
    };
    let http = b"GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: a browser of some kind\r\nAccept: */*\r\n\r\n";
    let wrong = [
        http.to_vec(),
        vec![0; 64],
        vec![0xff; 64],
        with(10, &[1]),
        with(10, &[2]),
        with(12, b"PLAIN"),
        with(12, b"CURVE"),
        [greeting(), ready("PUB")].concat(),
        [greeting(), ready("")].concat(),
        [greeting(), frame(4, b"\x05READY")].concat(),
        [greeting(), frame(4, b"\x05READY\x0bSocket-Type\xff\xff\xff\xff")].concat(),
        [greeting(), frame(4, b"\x05ERROR\x02no")].concat(),
        [greeting(), frame(4, b"\xff")].concat(),
        [greeting(), frame(4, b"")].concat(),
        [greeting(), message(&[b"\x01"])].concat(),
        [greeting(), frame(8, b"")].concat(),
    ];
    watch.mark();
    for (endpoint, socket) in endpoints(&publisher) {
        // Everything but the mechanism is right.
        let other = [with(12, b"PLAIN"), ready(socket)].concat();
        for bytes in wrong.iter().chain([&other]) {
            let mut peer = RawPeer::connect(&endpoint);
            // It may be closed before everything is sent.
            let _ = peer.send(bytes);
            peer.await_hang_up();
        }
    }
    assert!(watch.peak() < MIB, "{} held", watch.peak());
    serves(&watch, &publisher);
}

#[test]
fn subscriptions_without_end_cost_nothing() {
    let mut watch = Watch::start();
    let publisher = bind(&watch, PublisherOptions::default());
    let mut peer = RawPeer::connect(publisher.endpoint()).shake_hands("SUB");
    watch.mark();
    let mut most = 0;
    for some in 0..300 {
        let mut bytes = Vec::new();
        for number in 0..1000 {
            bytes.extend(message(&[format!("\x01{number:0100} {some}").as_bytes()]));
        }
        // Without the memory on this side.
        most = most.max(bytes.capacity());
        peer.send(&bytes).unwrap();
    }
    peer.send(&[frame(4, b"\x04PING\0\0"), message(&[b"\x01kv"])].concat()).unwrap();
    assert_eq!(peer.frame().unwrap().1, b"\x04PONG");
    assert!(watch.peak() < most + MIB, "{} held", watch.peak());
    peer.send(&frame(4, b"\x04PING\0\0")).unwrap();
    assert_eq!(peer.frame().unwrap().1, b"\x04PONG");
    publisher.publish(vec![Event::Cleared]).unwrap();
    assert_eq!(peer.message()[0], b"kv@pod");
    // Endless heartbeats whose answers are not read: only the last one is kept for its answer.
    watch.mark();
    let pings = frame(4, b"\x04PING\0\0sixteen bytes ok").repeat(1000);
    peer.flood(&pings, 1000);
    assert!(watch.peak() < pings.len() + MIB, "{} held", watch.peak());
}

#[test]
fn messages_without_end_are_cut_off() {
    let mut watch = Watch::start();
    let publisher = bind(&watch, PublisherOptions::default());
    for (endpoint, socket) in endpoints(&publisher) {
        for part in [&[][..], &[7], &[7; 1000], &[7; 10_000]] {
            watch.mark();
            let mut peer = RawPeer::connect(&endpoint).shake_hands(socket);
            peer.flood(&frame(1, part), 1_000_000);
            peer.await_hang_up();
            assert!(watch.peak() < MIB, "parts of {}: {} held", part.len(), watch.peak());
        }
    }
    serves(&watch, &publisher);
}

#[test]
fn those_that_do_not_read_share_what_is_kept() {
    let mut watch = Watch::start();
    let publisher =
        bind(&watch, PublisherOptions { queue_bytes: 2 * MIB, history_bytes: 2 * MIB, ..Default::default() });
    let mut silent = Vec::new();
    for _ in 0..50 {
        let mut peer = RawPeer::connect(publisher.endpoint()).shake_hands("SUB");
        peer.send(&message(&[b"\x01"])).unwrap();
        let mut replay = RawPeer::connect(publisher.replay_endpoint().unwrap()).shake_hands("DEALER");
        for _ in 0..100 {
            replay.send(&message(&[b"", &[0; 8]])).unwrap();
        }
        silent.push((peer, replay));
    }
    watch.mark();
    let large = StoredBlocks { tokens: vec![1; 100_000], block_size: 100_000, ..StoredBlocks::default() };
    for _ in 0..1000 {
        publisher.publish(vec![Event::Stored(large.clone())]).unwrap();
    }
    // The queue, one batch and one piece of output each, and connections.
    assert!(watch.peak() < 30 * MIB, "{} held", watch.peak());
    drop(silent);
}

#[test]
fn half_open_connections_keep_nobody_out() {
    let mut watch = Watch::start();
    let publisher = bind(&watch, PublisherOptions::default());
    watch.mark();
    let mut open = Vec::new();
    for at in 0..300usize {
        for (endpoint, socket) in endpoints(&publisher) {
            let mut peer = RawPeer::connect(&endpoint);
            let whole = [greeting(), ready(socket)].concat();
            // The oldest are closed meanwhile.
            let _ = peer.send(&whole[..at % whole.len()]);
            open.push(peer);
        }
        if at % 50 == 49 {
            serves(&watch, &publisher);
        }
    }
    assert!(watch.peak() < 4 * MIB, "{} held", watch.peak());
    // The first ones were closed for later ones.
    assert!(open.iter_mut().take(2).all(|peer| peer.is_closed_within(Duration::from_secs(4))));
}

#[test]
fn so_many_peers_are_taken_and_others_when_they_have_gone() {
    let mut watch = Watch::start();
    let publisher = bind(&watch, PublisherOptions::default());
    watch.mark();
    let mut peers: Vec<RawPeer> = (0..256).map(|_| RawPeer::connect(publisher.endpoint()).shake_hands("SUB")).collect();
    // Each of them is served.
    for peer in &mut peers {
        peer.send(&[message(&[b"\x01"]), frame(4, b"\x04PING\0\0")].concat()).unwrap();
        assert_eq!(peer.frame().unwrap().1, b"\x04PONG");
    }
    RawPeer::connect(publisher.endpoint()).shake_hands("SUB").await_hang_up();
    assert!(watch.peak() < 8 * MIB, "{} held", watch.peak());
    drop(peers);
    serves(&watch, &publisher);
}

#[test]
fn random_bytes_and_damaged_streams_harm_nobody() {
    let mut watch = Watch::start();
    let seed = seed();
    println!("KVTIDE_SEED={seed}");
    let mut numbers = Numbers(seed);
    let publisher = bind(&watch, PublisherOptions::default());
    watch.mark();
    for _ in 0..400 {
        for (endpoint, socket) in endpoints(&publisher) {
            let mut peer = RawPeer::connect(&endpoint);
            let _ = peer.send(&stream(&mut numbers, socket));
            peer.await_close();
        }
    }
    assert!(watch.peak() < 2 * MIB, "{} held, KVTIDE_SEED={seed}", watch.peak());
    serves(&watch, &publisher);
}

/// A peer's stream, of which some bytes are wrong, or some are missing.
fn stream(numbers: &mut Numbers, socket: &str) -> Vec<u8> {
    let mut bytes = [greeting(), ready(socket)].concat();
    for _ in 0..numbers.below(20) {
        let body: Vec<u8> = (0..numbers.below(300)).map(|_| numbers.next() as u8).collect();
        match numbers.below(5) {
            0 => bytes.extend(message(&[b"", &numbers.next().to_be_bytes()])),
            1 => bytes.extend(message(&[&[&[numbers.below(2) as u8], &body[..]].concat()])),
            2 => bytes.extend(frame(4, &[b"\x04PING", &body[..]].concat())),
            3 => bytes.extend(claim(numbers.below(8) as u8, numbers.next() >> numbers.below(64))),
            _ => bytes.extend(frame(numbers.below(8) as u8, &body)),
        }
    }
    for _ in 0..numbers.below(4) {
        let at = numbers.below(bytes.len() as u64) as usize;
        bytes[at] = numbers.next() as u8;
    }
    if numbers.below(4) == 0 {
        bytes.truncate(numbers.below(bytes.len() as u64) as usize);
    }
    bytes
}
