//! A server whose answers are late, cut, missing or replaced.

use std::time::{Duration, Instant};

use kvtide_tiers::{Guarded, Redis, Store};

use crate::support::proxy::{Mischief, Proxy};
use crate::support::redis_server::{RedisServer, store};
use crate::support::{entries, events, eventually, in_time, keys, later, soon, value};

const COUNT: usize = 60;
const BYTES: usize = 30_000;

struct Scene {
    _server: RedisServer,
    proxy: Proxy,
    store: Guarded<Redis>,
    values: Vec<Vec<u8>>,
}

fn scene() -> Option<Scene> {
    let server = RedisServer::start(&[])?;
    let proxy = Proxy::before(server.port);
    let store = store(&proxy.url());
    let values: Vec<Vec<u8>> = (0..COUNT).map(|index| value(index, BYTES)).collect();
    assert_eq!(store.put(&entries(&keys(COUNT), &values), later()), COUNT);
    Some(Scene { _server: server, proxy, store, values })
}

impl Scene {
    /// Reads all keys; returns the number of values found, after checking each.
    fn read(&self, deadline: Instant) -> usize {
        let found = in_time(deadline, || self.store.get(&keys(COUNT), BYTES, deadline));
        let right =
            found.iter().zip(&self.values).all(|(found, value)| found.as_ref().is_none_or(|found| found == value));
        assert!(right, "a wrong value");
        found.iter().flatten().count()
    }

    /// Checks that a fault causes one event and no wrong value, and that recovery causes one more event.
    fn goes_through(&self, mischief: Mischief, faults: &[&str]) {
        let seen = self.suffers(&mischief, faults);
        assert_eq!(seen, 1, "{mischief:?} goes unnoticed");
    }

    /// Applies a fault whose answers may look like misses. Returns the number of events.
    fn suffers(&self, mischief: &Mischief, faults: &[&str]) -> usize {
        self.proxy.does(mischief.clone());
        for _ in 0..6 {
            self.read(soon());
        }
        let seen = events(&self.store);
        assert!(seen.len() <= 1 && seen.iter().all(|event| faults.contains(&event.as_str())), "{mischief:?}: {seen:?}");
        self.proxy.does(Mischief::None);
        eventually("all is well again", || self.read(later()) == COUNT);
        let after = events(&self.store);
        assert!(after.len() == seen.len() && after.iter().all(|event| event == "+"), "{mischief:?}: {after:?}");
        seen.len()
    }
}

#[test]
fn answers_that_are_late_cut_or_missing_are_misses_and_one_event() {
    let Some(scene) = scene() else { return };
    // On a slow machine, these may time out as well.
    scene.goes_through(Mischief::Close, &["-unreachable", "-timedOut"]);
    scene.goes_through(Mischief::Cut, &["-unreachable", "-garbage", "-timedOut"]);
    scene.goes_through(Mischief::Silence, &["-timedOut"]);
    scene.goes_through(Mischief::Delay(Duration::from_millis(500)), &["-timedOut"]);
}

#[test]
fn answers_that_are_somebody_elses_are_misses_and_one_event() {
    let Some(scene) = scene() else { return };
    let any = ["-garbage", "-unreachable", "-timedOut"];
    // A negative length means a missing value: if there is an answer for each key, that is a miss, and no fault.
    scene.suffers(&Mischief::Say(b"$-7\r\n".to_vec()), &any);
    for garbage in [
        &b"HTTP/1.1 400 Bad Request\r\n\r\n"[..],
        b"\x15\x03\x01\x00\x02\x02\x16",
        b":1\r\n",
        b"$x\r\n",
        b"*1152921504606846976\r\n",
        b"%4611686018427387904\r\n",
        b"$1099511627776\r\n",
        b"$9223372036854775807\r\nabc",
        b"-ERR no\r\n",
    ] {
        scene.goes_through(Mischief::Say(garbage.to_vec()), &any);
    }
    scene.goes_through(Mischief::Say(b"*1\r\n".repeat(5000)), &any);
}

/// Returns the memory of this process, in bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or(0) * 4096
}

#[test]
fn an_answer_without_an_end_takes_no_more_memory_than_was_asked_for() {
    let Some(scene) = scene() else { return };
    let before = resident();
    let mut flood = b"$1099511627776\r\n".to_vec();
    flood.resize(1 << 20, b'x');
    scene.proxy.does(Mischief::Flood(flood));
    let deadline = Instant::now() + Duration::from_secs(2);
    assert_eq!(scene.read(deadline), 0);
    assert_eq!(events(&scene.store), ["-garbage"]);
    let more = resident().saturating_sub(before);
    assert!(more < 300 << 20, "{more} bytes more");
    scene.proxy.does(Mischief::None);
    eventually("all is well again", || scene.read(later()) == COUNT);
}
