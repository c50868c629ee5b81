//! Object stores, tested with moto and with servers that lie.

#[path = "../support/mod.rs"]
mod support;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

use kvtide_core::Code;
use kvtide_tiers::{FaultKind, ObjectStorage, ObjectStorageOptions, Store};
use support::proxy::{Mischief, Proxy};
use support::s3_server::{S3Server, options, store};
use support::{entries, events, eventually, in_time, keys, later, soon, value};

fn values(count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|index| value(index, 100_000)).collect()
}

#[test]
fn values_are_added_once_found_and_removed() {
    let Some(server) = S3Server::start() else { return };
    let store = store("bucket", server.port);
    let mut keys = keys(20);
    keys[3] = "a/../b//ü?#%".to_owned();
    let values = values(20);
    assert_eq!(store.get(&keys, 100_000, later()), vec![None; 20]);
    assert_eq!(store.put(&entries(&keys, &values), later()), 20);
    assert_eq!(store.put(&[(keys[0].clone(), b"another")], later()), 1, "certainly there");
    let found = store.get(&keys, 100_000, later());
    assert!(found.iter().zip(&values).all(|(found, value)| found.as_ref() == Some(value)));
    assert_eq!(store.get(&keys, 99_999, later()), vec![None; 20], "too long");
    assert_eq!(store.has(&keys, later()), vec![true; 20]);
    store.remove(&keys[1..], later());
    assert_eq!(store.has(&keys, later()).iter().filter(|is_there| **is_there).count(), 1);
    assert_eq!((events(&store), store.health().last_fault), (vec![], None));
}

#[test]
fn a_server_that_goes_away_and_comes_back_is_one_event_each_time() {
    let Some(mut server) = S3Server::start() else { return };
    let store = store("bucket", server.port);
    let values = values(5);
    for round in 0..2 {
        eventually("it takes values", || store.put(&entries(&keys(5), &values), later()) == 5);
        assert_eq!(events(&store), if round == 0 { vec![] } else { vec!["+"] });
        server.kill();
        for _ in 0..3 {
            let deadline = later();
            assert_eq!(in_time(deadline, || store.get(&keys(5), 100_000, deadline)), vec![None; 5]);
        }
        assert_eq!(events(&store), ["-unreachable"]);
        server.restart();
    }
}

#[test]
fn a_bucket_that_does_not_exist_is_refused_at_once() {
    let Some(server) = S3Server::start() else { return };
    let store = store("no-such-bucket", server.port);
    assert_eq!(store.get(&keys(1), 10, later()), [None]);
    assert_eq!(events(&store), ["-refused"]);
    assert_eq!(store.health().failures(FaultKind::Refused), 1);
    assert!(store.health().last_fault.unwrap().about.contains("bucket"));
}

#[test]
fn answers_that_are_late_or_cut_are_misses_and_one_event() {
    let Some(server) = S3Server::start() else { return };
    let proxy = Proxy::before(server.port);
    let store = store("bucket", proxy.port);
    let values = values(5);
    assert_eq!(store.put(&entries(&keys(5), &values), later()), 5);
    for mischief in [
        Mischief::Cut,
        Mischief::Close,
        Mischief::Silence,
        Mischief::Delay(Duration::from_secs(1)),
        Mischief::Say(b"$5\r\nhello\r\n".to_vec()),
    ] {
        proxy.does(mischief.clone());
        for _ in 0..6 {
            let deadline = soon();
            let found = in_time(deadline, || store.get(&keys(5), 100_000, deadline));
            assert_eq!(found, vec![None; 5], "{mischief:?}");
        }
        assert_eq!(events(&store).len(), 1, "{mischief:?}");
        proxy.does(Mischief::None);
        eventually("all is well again", || {
            let found = store.get(&keys(5), 100_000, later());
            found.iter().zip(&values).all(|(found, value)| found.as_ref() == Some(value))
        });
        assert_eq!(events(&store), ["+"], "{mischief:?}");
    }
}

/// Starts a server that gives every request this answer.
fn liar(answer: Vec<u8>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let answer = answer.clone();
            std::thread::spawn(move || {
                let _ = client.read(&mut [0; 1 << 16]);
                let _ = client.write_all(&answer);
            });
        }
    });
    port
}

#[test]
fn what_a_server_says_of_a_length_is_looked_at_before_the_body() {
    let head = |status: &str, length: &str| {
        let time = "Last-Modified: Tue, 24 Nov 2026 00:00:00 GMT\r\nETag: \"e\"";
        format!("HTTP/1.1 {status}\r\n{length}{time}\r\nConnection: close\r\n\r\n")
    };
    let answers = [
        (head("200 OK", "Content-Length: 1099511627776\r\n") + "hello", FaultKind::Full, 0),
        (head("200 OK", "Content-Length: 101\r\n") + "hello", FaultKind::Unreachable, 0),
        (head("200 OK", "Content-Length: 10\r\n") + "hello", FaultKind::Unreachable, 1),
        (head("200 OK", "") + "hello", FaultKind::Garbage, 1),
        (head("503 Slow Down", "Content-Length: 0\r\n"), FaultKind::Unreachable, 1),
        (head("403 Forbidden", "Content-Length: 0\r\n"), FaultKind::Refused, 1),
        (head("301 Moved", "Content-Length: 0\r\n"), FaultKind::Refused, 1),
    ];
    for (answer, kind, count) in answers {
        let store = store("bucket", liar(answer.clone().into_bytes()));
        for _ in 0..2 {
            let deadline = later();
            assert_eq!(in_time(deadline, || store.get(&keys(1), 100, deadline)), [None]);
        }
        assert_eq!(events(&store).len(), count, "{answer}: {:?}", store.health());
        assert_eq!(store.health().failures(kind) > 0, count > 0, "{answer}: {:?}", store.health());
    }
}

#[test]
fn a_refusal_that_claims_a_length_or_never_ends_is_a_refusal() {
    // In more than one piece: the client reserves the length claimed for the first, and grows at the second.
    let body = "x".repeat(1 << 20);
    for status in ["403 Forbidden", "404 Not Found", "500 Internal Server Error", "200 OK"] {
        for length in ["Content-Length: 70368744177664\r\n", "Content-Length: 9223372036854775807\r\n", ""] {
            let head = format!("HTTP/1.1 {status}\r\n{length}Connection: close\r\n\r\n");
            let store = store("bucket", liar((head + &body).into_bytes()));
            let deadline = later();
            assert_eq!(in_time(deadline, || store.get(&keys(1), 100, deadline)), [None]);
            let values = values(1);
            // A successful answer to a write has no body to check.
            let is_good = status.starts_with("200");
            let added = in_time(deadline, || store.put(&entries(&keys(1), &values), deadline));
            assert!(is_good || added == 0, "{status} {length}");
        }
    }
}

#[test]
fn a_refusal_without_an_end_is_not_read_until_the_deadline() {
    for status in ["403 Forbidden", "404 Not Found"] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let store = store("bucket", listener.local_addr().unwrap().port());
        std::thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            let _ = client.read(&mut [0; 1 << 16]);
            let _ = client.write_all(format!("HTTP/1.1 {status}\r\nConnection: close\r\n\r\n").as_bytes());
            while client.write_all(&[b'x'; 1 << 12]).is_ok() {
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        assert_eq!(store.get(&keys(1), 100, later()), [None]);
        assert_eq!(store.health().failures(FaultKind::TimedOut), 0, "{status}: {:?}", store.health());
    }
}

#[test]
fn what_cannot_work_is_refused_by_its_name_and_keys_are_shown_nowhere() {
    let with = |url: &str, name: &str, value: &str| {
        let mut own = ObjectStorageOptions { url: url.to_owned(), ..options("bucket", 1) };
        own.options.push((name.to_owned(), value.to_owned()));
        own
    };
    for (wrong, argument) in [
        (with("", "region", "x"), "url"),
        (with("file:///tmp/a-very-secret-key", "region", "x"), "url"),
        (with("s3://user:a-very-secret-key@bucket/", "region", "x"), "url"),
        (with("http://localhost/a-very-secret-key", "region", "x"), "url"),
        (with("s3://bucket", "no_such_option", "a-very-secret-key"), "options"),
        (with("s3://bucket", "allow_invalid_certificates", "true"), "options"),
        (with("s3://bucket", "AWS_allow_invalid_certificates", "true"), "options"),
        (with("gs://bucket", "google_allow_invalid_certificates", "true"), "options"),
        (with("az://bucket", "azure_allow_invalid_certificates", "true"), "options"),
        (with("s3://bucket", "allow_http", "a-very-secret-key"), "options"),
        (ObjectStorageOptions { roots: Some(b"no certificate".to_vec()), ..options("bucket", 1) }, "read"),
    ] {
        let error = ObjectStorage::new(&wrong).expect_err(&wrong.url);
        assert!(matches!(error.code(), Code::InvalidArgument | Code::IoError));
        assert_eq!(error.details()[0].value.to_string(), argument, "{error}");
        let shown = format!("{error} {error:?} {:?} {wrong:?}", error.details());
        assert!(!shown.contains("very-secret"), "{shown}");
    }
    let store = store("bucket", 1);
    assert_eq!(store.get(&keys(1), 10, soon()), [None]);
    let shown = format!("{store:?} {:?} {:?}", store.health(), options("bucket", 1));
    assert!(!shown.contains("very-secret") && !shown.contains("an-access-key"), "{shown}");
}
