//! A publisher and followers over local sockets: gaps, restarts, subscribers that do not read.

use std::time::Duration;

use kvtide_router::{
    Batch, BlockHash, Event, Followed, Follower, FollowerOptions, Publisher, PublisherOptions, StoredBlocks,
};
use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::raw_peer::{RawPeer, frame, message};

fn stored(number: u64) -> Event {
    let hashes = vec![BlockHash::Number(number)];
    Event::Stored(StoredBlocks { hashes, tokens: vec![1, 2, 3, 4], block_size: 4, ..StoredBlocks::default() })
}

fn options() -> PublisherOptions {
    let replay_endpoint = Some("tcp://127.0.0.1:0".to_owned());
    PublisherOptions { replay_endpoint, topic: "kv@pod@model".to_owned(), ..PublisherOptions::default() }
}

async fn bind(options: PublisherOptions) -> Publisher {
    Publisher::bind(&Handle::current(), options).await.unwrap()
}

fn follow(publisher: &Publisher, replays: bool) -> Follower {
    let options = FollowerOptions {
        endpoint: publisher.endpoint().to_owned(),
        replay_endpoint: publisher.replay_endpoint().filter(|_| replays).map(str::to_owned),
        topic: "kv@".to_owned(),
        patience: Duration::from_secs(60),
        silence: Duration::from_millis(100),
        queue: 4,
        ..FollowerOptions::default()
    };
    Follower::start(&Handle::current(), options).unwrap()
}

async fn next(follower: &mut Follower) -> Option<(u64, Vec<Event>)> {
    match timeout(Duration::from_secs(60), follower.next()).await.expect("something comes").expect("a follower") {
        Followed::Batch { number, batch: Batch { events, .. } } => Some((number, events)),
        Followed::Lost => None,
    }
}

/// Binds the same endpoints again, retrying if the system is slow to release them.
async fn bind_again(publisher: Publisher, first: u64) -> Publisher {
    let endpoint = publisher.endpoint().to_owned();
    let replay_endpoint = publisher.replay_endpoint().map(str::to_owned);
    publisher.close().await;
    for _ in 0..100 {
        let options = PublisherOptions {
            endpoint: endpoint.clone(),
            replay_endpoint: replay_endpoint.clone(),
            first,
            ..options()
        };
        match Publisher::bind(&Handle::current(), options).await {
            Ok(publisher) => return publisher,
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
    panic!("{endpoint} is not given free");
}

#[tokio::test]
async fn a_follower_gets_what_came_before_it_and_what_comes_after() {
    let publisher = bind(options()).await;
    for number in 0..100 {
        assert_eq!(publisher.publish(vec![stored(number)]).unwrap(), number);
    }
    let mut follower = follow(&publisher, true);
    for number in 0..200 {
        if number >= 100 {
            publisher.publish(vec![stored(number)]).unwrap();
        }
        assert_eq!(next(&mut follower).await, Some((number, vec![stored(number)])));
    }
    publisher.close().await;
}

#[tokio::test]
async fn what_is_no_longer_kept_is_lost() {
    let publisher = bind(PublisherOptions { history_batches: 10, ..options() }).await;
    for number in 0..100 {
        publisher.publish(vec![stored(number)]).unwrap();
    }
    let mut follower = follow(&publisher, true);
    assert_eq!(next(&mut follower).await, None);
    for number in 90..100 {
        assert_eq!(next(&mut follower).await, Some((number, vec![stored(number)])));
    }
}

#[tokio::test]
async fn without_replays_what_came_before_is_lost() {
    let publisher = bind(options()).await;
    publisher.publish(vec![stored(0)]).unwrap();
    let mut follower = follow(&publisher, false);
    let mut seen = Vec::new();
    while seen.len() < 3 {
        publisher.publish(vec![Event::Cleared]).unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
        while let Ok(Some(followed)) = timeout(Duration::from_millis(20), follower.next()).await {
            seen.push(followed);
        }
    }
    assert_eq!(seen[0], Followed::Lost);
    let numbers: Vec<u64> = (seen[1..].iter())
        .map(|followed| match followed {
            Followed::Batch { number, .. } => *number,
            Followed::Lost => panic!("lost twice"),
        })
        .collect();
    assert!(numbers.is_sorted() && numbers[0] > 0);
}

#[tokio::test]
async fn a_publisher_that_begins_anew_is_noticed_also_where_its_numbers_fit() {
    for (before, after) in [(5, 3), (5, 5), (5, 20)] {
        let publisher = bind(options()).await;
        for number in 0..before {
            publisher.publish(vec![stored(number)]).unwrap();
        }
        let mut follower = follow(&publisher, true);
        for number in 0..before {
            assert_eq!(next(&mut follower).await, Some((number, vec![stored(number)])));
        }
        let publisher = bind_again(publisher, 0).await;
        for number in 0..after {
            publisher.publish(vec![stored(1000 + number)]).unwrap();
        }
        assert_eq!(next(&mut follower).await, None, "{before}, {after}");
        for number in 0..after {
            assert_eq!(next(&mut follower).await, Some((number, vec![stored(1000 + number)])));
        }
    }
}

#[tokio::test]
async fn a_follower_may_come_first_and_a_connection_may_break() {
    let publisher = bind(options()).await;
    let mut follower = follow(&publisher, true);
    publisher.publish(vec![stored(0)]).unwrap();
    assert_eq!(next(&mut follower).await, Some((0, vec![stored(0)])));
    let publisher = bind_again(publisher, 1).await;
    publisher.publish(vec![Event::Cleared]).unwrap();
    // The new publisher does not keep the batch that the follower saw last.
    assert_eq!(next(&mut follower).await, None);
    assert_eq!(next(&mut follower).await, Some((1, vec![Event::Cleared])));
}

/// A subscriber whose subscription has reached the publisher: it has answered in order.
fn subscribe(publisher: &Publisher, topic: &str) -> RawPeer {
    let mut peer = RawPeer::connect(publisher.endpoint()).shake_hands("SUB");
    peer.send(&message(&[&[&[1], topic.as_bytes()].concat()])).unwrap();
    peer.send(&frame(4, b"\x04PING\0\0here")).unwrap();
    assert_eq!(peer.frame().unwrap(), (4, b"\x04PONGhere".to_vec()));
    peer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_are_as_vllm_sends_them() {
    let publisher = bind(options()).await;
    let mut events = subscribe(&publisher, "kv@pod");
    for number in 0..3 {
        publisher.publish(vec![stored(number)]).unwrap();
    }
    let frames = events.message();
    assert_eq!((frames.len(), &frames[0][..], &frames[1][..]), (3, &b"kv@pod@model"[..], &[0; 8][..]));
    // [ts, events, nil]
    assert_eq!((frames[2][0], frames[2][1], frames[2].last()), (0x93, 0xcb, Some(&0xc0)));

    for delimiter in [true, false] {
        let mut replay = RawPeer::connect(publisher.replay_endpoint().unwrap()).shake_hands("DEALER");
        let ask = |first: &[u8]| if delimiter { message(&[b"", first]) } else { message(&[first]) };
        for nonsense in [&b"x"[..], &[0; 9], &[], &1u64.to_be_bytes()] {
            replay.send(&ask(nonsense)).unwrap();
        }
        for number in [1u64, 2, u64::MAX] {
            let frames = replay.message();
            assert_eq!((frames.len(), frames[0].len(), &frames[1][..]), (3, 0, &number.to_be_bytes()[..]));
            assert_eq!(frames[2].is_empty(), number == u64::MAX);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscriber_gets_what_it_is_subscribed_to_from_then_on() {
    let publisher = bind(options()).await;
    publisher.publish(vec![stored(0)]).unwrap();
    let mut all = subscribe(&publisher, "");
    let mut other = subscribe(&publisher, "kv@other");
    // As a command, in the form of ZMTP 3.1; twice, and cancelled once.
    let mut twice = subscribe(&publisher, "kv@pod");
    twice.send(&[frame(4, b"\x09SUBSCRIBEkv@"), message(&[b"\0kv@pod"])].concat()).unwrap();
    twice.send(&frame(4, b"\x04PING\0\0")).unwrap();
    assert_eq!(twice.frame().unwrap().1, b"\x04PONG");
    publisher.publish(vec![stored(1)]).unwrap();
    assert_eq!((&all.message()[1][..], &twice.message()[1][..]), (&1u64.to_be_bytes()[..], &1u64.to_be_bytes()[..]));
    twice.send(&[frame(4, b"\x06CANCELkv@"), frame(4, b"\x04PING\0\0")].concat()).unwrap();
    assert_eq!(twice.frame().unwrap().1, b"\x04PONG");
    publisher.publish(vec![stored(2)]).unwrap();
    for peer in [&mut other, &mut twice] {
        peer.send(&[message(&[b"\x01kv"]), frame(4, b"\x04PING\0\0")].concat()).unwrap();
        assert_eq!(peer.frame().unwrap().1, b"\x04PONG", "nothing came while it was not subscribed");
    }
    publisher.publish(vec![stored(3)]).unwrap();
    assert_eq!(all.message()[1], 2u64.to_be_bytes());
    for peer in [&mut all, &mut other, &mut twice] {
        assert_eq!(peer.message()[1], 3u64.to_be_bytes());
    }
    // Batches published before the end arrive before the end.
    publisher.publish(vec![stored(4)]).unwrap();
    publisher.close().await;
    for mut peer in [all, other, twice] {
        assert_eq!(peer.message()[1], 4u64.to_be_bytes());
        peer.await_close();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscriber_that_does_not_read_holds_nobody_up() {
    let publisher = bind(PublisherOptions { history_bytes: 1 << 20, ..options() }).await;
    let silent = subscribe(&publisher, "");
    // Not read until the end: its queue of four is full at once.
    let mut follower = follow(&publisher, true);
    let tokens: Vec<u32> = (0..2000).map(|token| 100_000 + token).collect();
    for number in 0..5_000u64 {
        let hashes = vec![BlockHash::Number(number)];
        let blocks = StoredBlocks { hashes, tokens: tokens.clone(), block_size: 2000, ..StoredBlocks::default() };
        publisher.publish(vec![Event::Stored(blocks)]).unwrap();
    }
    publisher.publish(vec![Event::Cleared]).unwrap();
    // It still reaches the end, with or without a loss.
    let mut last = None;
    while last != Some(5_000) {
        last = next(&mut follower).await.map_or(last, |(number, _)| Some(number));
    }
    drop(silent);
}

#[tokio::test]
async fn what_no_follower_would_take_is_refused() {
    let publisher = bind(options()).await;
    publisher.publish(vec![stored(0)]).unwrap();
    let large = StoredBlocks { tokens: vec![u32::MAX; 4 << 20], block_size: 4 << 20, ..StoredBlocks::default() };
    let error = publisher.publish(vec![Event::Stored(large)]).unwrap_err();
    assert_eq!((error.code().as_str(), publisher.next_number()), ("INVALID_ARGUMENT", 1));
    let topic = "t".repeat(4097);
    let wrong = PublisherOptions { topic: topic.clone(), ..options() };
    assert_eq!(Publisher::bind(&Handle::current(), wrong).await.unwrap_err().code().as_str(), "INVALID_ARGUMENT");
    let endpoint = publisher.endpoint().to_owned();
    let wrong = FollowerOptions { endpoint, topic, ..FollowerOptions::default() };
    assert_eq!(Follower::start(&Handle::current(), wrong).unwrap_err().code().as_str(), "INVALID_ARGUMENT");
}

#[tokio::test]
async fn endpoints_that_are_none_are_refused() {
    let wrong = PublisherOptions { endpoint: "nowhere".to_owned(), ..PublisherOptions::default() };
    let error = Publisher::bind(&Handle::current(), wrong).await.unwrap_err();
    assert_eq!((error.code().as_str(), error.details().len()), ("IO_ERROR", 3));
    let taken = bind(PublisherOptions::default()).await;
    let wrong = PublisherOptions { endpoint: taken.endpoint().to_owned(), ..PublisherOptions::default() };
    assert_eq!(Publisher::bind(&Handle::current(), wrong).await.unwrap_err().code().as_str(), "IO_ERROR");
    for wrong in ["nowhere", "tcp://*:5557", "tcp://127.0.0.1:65536"] {
        let wrong = FollowerOptions { endpoint: wrong.to_owned(), ..FollowerOptions::default() };
        assert_eq!(Follower::start(&Handle::current(), wrong).unwrap_err().code().as_str(), "IO_ERROR");
    }
}

#[tokio::test]
async fn a_publisher_hears_of_who_came_too_late_and_of_nobody_else() {
    let publisher = bind(PublisherOptions { history_batches: 2, first: 7, ..options() }).await;
    for number in 7..9 {
        publisher.publish(vec![stored(number)]).unwrap();
    }
    let mut early = follow(&publisher, true);
    // A follower that asks from 0 cannot know that there was nothing before 7.
    while next(&mut early).await.is_none() {}
    assert!(!publisher.take_behind(), "all that there was is there");
    publisher.publish(vec![stored(9)]).unwrap();
    let _late = follow(&publisher, true);
    for _ in 0..1000 {
        if publisher.take_behind() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the publisher did not notice");
}
