//! A single server: its content, and what happens when it stops.

use std::time::{Duration, Instant};

use kvtide_tiers::{Envelope, FaultKind, Redis, RedisOptions, State, Store};

use crate::support::redis_server::{RedisServer, brisk, options, store};
use crate::support::{entries, events, eventually, in_time, keys, later, runtime, soon, value};

fn values(count: usize, bytes: usize) -> Vec<Vec<u8>> {
    (0..count).map(|index| value(index, bytes)).collect()
}

fn found(store: &impl Store, keys: &[String], bytes_max: usize) -> Vec<Option<Vec<u8>>> {
    let deadline = later();
    in_time(deadline, || store.get(keys, bytes_max, deadline))
}

fn some(values: &[Vec<u8>]) -> Vec<Option<Vec<u8>>> {
    values.iter().cloned().map(Some).collect()
}

#[test]
fn many_values_of_every_size_are_added_found_and_removed() {
    let Some(server) = RedisServer::start(&[]) else { return };
    let store = store(&server.url());
    for (count, bytes) in [(5000, 16), (200, 10_000), (9, 3_000_000)] {
        let keys: Vec<String> = keys(count).iter().map(|key| format!("{bytes}-{key}")).collect();
        let values = values(count, bytes);
        assert_eq!(found(&store, &keys, bytes), vec![None; count]);
        assert_eq!(store.put(&entries(&keys, &values), later()), count);
        assert!(found(&store, &keys, bytes) == some(&values));
        assert_eq!(store.has(&keys, later()), vec![true; count]);
        store.remove(&keys[1..], later());
        let left: Vec<bool> = (0..count).map(|index| index == 0).collect();
        assert_eq!(store.has(&keys, later()), left);
    }
    assert_eq!(events(&store), [""; 0]);
    assert_eq!(store.health().last_fault, None);
}

#[test]
fn a_value_that_is_longer_than_may_be_is_a_miss_and_costs_no_memory() {
    let Some(server) = RedisServer::start(&[]) else { return };
    let store = store(&server.url());
    let values = values(2, 1000);
    assert_eq!(store.put(&entries(&keys(2), &values), later()), 2);
    server.cli(&["setrange", "kvtide:key-0", "100000000", "x"]);
    assert_eq!(found(&store, &keys(2), 1000), [None, Some(values[1].clone())]);
    assert_eq!(found(&store, &keys(2), 999), [None, None]);
    assert_eq!(store.health().bytes_in, 1000);
}

#[test]
fn values_are_added_once_with_a_prefix_and_a_time_to_live() {
    let Some(server) = RedisServer::start(&[]) else { return };
    let own =
        RedisOptions { prefix: "mine/".to_owned(), ttl: Some(Duration::from_secs(100)), ..options(&server.url()) };
    let store = Redis::guarded(&own, brisk(), runtime(), None).unwrap();
    assert_eq!(store.put(&[("a".to_owned(), b"first")], later()), 1);
    assert_eq!(store.put(&[("a".to_owned(), b"second")], later()), 1, "certainly there");
    assert_eq!(server.cli(&["get", "mine/a"]), "first");
    let ttl: u64 = server.cli(&["ttl", "mine/a"]).parse().unwrap();
    assert!((1..=100).contains(&ttl));
}

#[test]
fn a_key_that_holds_something_else_is_a_miss() {
    let Some(server) = RedisServer::start(&[]) else { return };
    let store = store(&server.url());
    server.cli(&["lpush", "kvtide:key-0", "x"]);
    server.cli(&["set", "kvtide:key-1", "right"]);
    assert_eq!(found(&store, &keys(2), 100), [None, Some(b"right".to_vec())]);
    assert_eq!((events(&store), store.health().last_fault), (vec![], None));
}

#[test]
fn a_server_that_is_stopped_costs_each_call_its_deadline_and_then_nothing_until_it_is_back() {
    let Some(server) = RedisServer::start(&[]) else { return };
    let store = store(&server.url());
    let values = values(50, 1000);
    assert_eq!(store.put(&entries(&keys(50), &values), later()), 50);
    server.signal("STOP");
    for _ in 0..4 {
        let deadline = soon();
        assert_eq!(in_time(deadline, || store.get(&keys(50), 1000, deadline)), vec![None; 50]);
    }
    assert_eq!(events(&store), ["-timedOut"]);
    server.signal("CONT");
    eventually("it is back", || found(&store, &keys(50), 1000) == some(&values));
    assert_eq!(events(&store), ["+"]);
}

#[test]
fn a_server_that_is_killed_and_started_again_is_one_event_each_time() {
    let Some(mut server) = RedisServer::start(&[]) else { return };
    let store = store(&server.url());
    let values = values(50, 1000);
    for round in 0..4 {
        // The restarted server is empty.
        eventually("it takes values", || store.put(&entries(&keys(50), &values), later()) == 50);
        assert!(found(&store, &keys(50), 1000) == some(&values));
        assert_eq!(events(&store), if round == 0 { vec![] } else { vec!["+"] });
        server.kill();
        let start = Instant::now();
        eventually("it is unavailable", || {
            assert_eq!(found(&store, &keys(50), 1000), vec![None; 50]);
            store.health().state != State::Available
        });
        assert!(start.elapsed() < Duration::from_secs(60), "refused connections are known at once");
        assert_eq!(events(&store), ["-unreachable"]);
        server.restart();
    }
}

#[test]
fn a_restart_between_two_calls_is_no_event() {
    let Some(mut server) = RedisServer::start(&[]) else { return };
    let store = store(&server.url());
    assert_eq!(store.put(&[("a".to_owned(), b"first")], later()), 1);
    server.restart();
    assert_eq!(found(&store, &["a".to_owned()], 10), [None]);
    assert_eq!(store.put(&[("a".to_owned(), b"first")], later()), 1);
    assert_eq!(events(&store), [""; 0]);
}

#[test]
fn a_wrong_password_is_known_at_once_and_a_right_one_is_taken() {
    let Some(server) = RedisServer::start(&["--requirepass", "the-right-one"]) else { return };
    let with = |password: Option<&str>| {
        let own = RedisOptions { password: password.map(str::to_owned), ..options(&server.url()) };
        Redis::guarded(&own, brisk(), runtime(), None).unwrap()
    };
    for wrong in [Some("a-wrong-one"), None] {
        let store = with(wrong);
        assert_eq!(found(&store, &keys(3), 10), [None, None, None]);
        assert_eq!(events(&store), ["-refused"]);
        assert_eq!(store.health().failures(FaultKind::Refused), 1, "asked once");
        let shown = format!("{store:?} {:?}", store.health());
        assert!(!shown.contains("wrong-one"), "{shown}");
        // The server's password is corrected.
        if wrong.is_some() {
            server.cli(&["-a", "the-right-one", "--no-auth-warning", "config", "set", "requirepass", "a-wrong-one"]);
            eventually("it is let in", || store.put(&[("a".to_owned(), b"x")], later()) == 1);
            assert_eq!(events(&store), ["+"]);
            server.cli(&["-a", "a-wrong-one", "--no-auth-warning", "config", "set", "requirepass", "the-right-one"]);
        }
    }
    let store = with(Some("the-right-one"));
    assert_eq!(store.put(&[("b".to_owned(), b"x")], later()), 1);
    assert_eq!(events(&store), [""; 0]);
}

#[test]
fn who_may_only_read_reads_on() {
    let Some(server) = RedisServer::start(&[]) else { return };
    server.cli(&["acl", "setuser", "reader", "on", ">pass", "~*", "+@read", "+@connection"]);
    server.cli(&["set", "kvtide:key-0", "here"]);
    let own = RedisOptions {
        username: Some("reader".to_owned()),
        password: Some("pass".to_owned()),
        ..options(&server.url())
    };
    let store = Redis::guarded(&own, brisk(), runtime(), None).unwrap();
    assert_eq!(found(&store, &keys(1), 10), [Some(b"here".to_vec())]);
    assert_eq!(store.put(&[("x".to_owned(), b"y")], later()), 0);
    assert_eq!(store.health().failures(FaultKind::ReadOnly), 1);
    assert_eq!(found(&store, &keys(1), 10), [Some(b"here".to_vec())]);
    assert_eq!(events(&store), [""; 0]);
}

#[test]
fn a_full_server_takes_no_more_and_still_answers() {
    let Some(server) = RedisServer::start(&["--maxmemory", "20mb", "--maxmemory-policy", "noeviction"]) else { return };
    let full = store(&server.url());
    let values = values(400, 100_000);
    let count = full.put(&entries(&keys(400), &values), later());
    assert!((10..300).contains(&count), "{count}");
    assert!(full.health().failures(FaultKind::Full) > 0);
    let read = found(&full, &keys(400), 100_000);
    assert_eq!(read.iter().flatten().count(), count);
    assert!(read.iter().zip(&values).all(|(read, value)| read.as_ref().is_none_or(|read| read == value)));
    assert_eq!(events(&full), [""; 0]);

    server.cli(&["config", "set", "maxmemory-policy", "allkeys-lru"]);
    let newer: Vec<String> = keys(400).iter().map(|key| format!("newer-{key}")).collect();
    assert_eq!(full.put(&entries(&newer, &values), later()), 400);
    let read = found(&full, &newer, 100_000);
    assert!((10..300).contains(&read.iter().flatten().count()), "the rest made room");
    assert!(read.iter().zip(&values).all(|(read, value)| read.as_ref().is_none_or(|read| read == value)));
}

#[test]
fn many_threads_share_a_store() {
    let Some(server) = RedisServer::start(&[]) else { return };
    let store = store(&server.url());
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let store = &store;
            scope.spawn(move || {
                let keys: Vec<String> = keys(40).iter().map(|key| format!("{thread}-{key}")).collect();
                let values: Vec<Vec<u8>> = (0..40).map(|index| value(index + thread * 100, 20_000)).collect();
                for _ in 0..5 {
                    assert_eq!(store.put(&entries(&keys, &values), later()), 40);
                    assert!(found(store, &keys, 20_000) == some(&values));
                }
            });
        }
    });
    assert_eq!(events(&store), [""; 0]);
}

#[test]
fn what_somebody_changes_in_a_server_is_a_miss_where_values_are_sealed() {
    let Some(server) = RedisServer::start(&[]) else { return };
    let (store, envelope) = (store(&server.url()), Envelope::new(Some([3; 32]), Some(4)).unwrap());
    let (keys, values) = (keys(2), values(2, 10_000));
    let closed: Vec<Vec<u8>> =
        keys.iter().zip(&values).map(|(key, value)| envelope.close(key, value.clone()).unwrap()).collect();
    assert_eq!(store.put(&entries(&keys, &closed), later()), 2);
    let opened = || -> Vec<Option<Vec<u8>>> {
        let found = found(&store, &keys, envelope.bytes_max(10_000));
        let open = |(key, bytes): (&String, &Option<Vec<u8>>)| {
            envelope.open(key, bytes.as_ref()?, 10_000).map(std::borrow::Cow::into_owned)
        };
        keys.iter().zip(&found).map(open).collect()
    };
    assert!(opened() == some(&values));
    server.cli(&["setrange", "kvtide:key-1", "50", "changed"]);
    assert_eq!(opened(), [Some(values[0].clone()), None]);
}
