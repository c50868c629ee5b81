//! An exchange that is given up half-way: its connection is not used again, because the rest of its answer would be read
//! as the next one.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use kvtide_tiers::{Redis, RedisOptions, Store};

use crate::support::redis_server::{brisk, options};
use crate::support::{in_time, keys, later, runtime, soon};

/// Starts a server whose first connection sends half an answer, and the rest with the next request; all others answer
/// at once. Returns its port and the number of connections so far.
fn server() -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let made = Arc::new(AtomicUsize::new(0));
    let count = made.clone();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let number = count.fetch_add(1, Ordering::Relaxed);
            thread::spawn(move || answer(stream, number == 0));
        }
    });
    (port, made)
}

fn answer(mut stream: TcpStream, is_first: bool) {
    let mut request = [0; 4096];
    for number in 0.. {
        let Ok(1..) = stream.read(&mut request) else { return };
        let answer = match (is_first, number) {
            (false, _) => &b"$5\r\nright\r\n"[..],
            (true, 0) => b"$5\r\nwr",
            (true, _) => b"ong\r\n$5\r\nwrong\r\n",
        };
        if stream.write_all(answer).is_err() {
            return;
        }
    }
}

#[test]
fn a_connection_is_not_used_again_after_an_exchange_was_given_up() {
    let (port, made) = server();
    let own = RedisOptions { connections: 1, ..options(&format!("redis://127.0.0.1:{port}")) };
    let store = Redis::guarded(&own, brisk(), runtime(), None).unwrap();
    let deadline = soon();
    assert_eq!(in_time(deadline, || store.get(&keys(1), 10, deadline)), [None]);
    assert_eq!(store.get(&keys(1), 10, later()), [Some(b"right".to_vec())]);
    assert_eq!(store.get(&keys(1), 10, later()), [Some(b"right".to_vec())]);
    assert_eq!(made.load(Ordering::Relaxed), 2, "one connection was given up, and the next one is kept");
}
