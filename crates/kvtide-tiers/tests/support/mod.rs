//! Servers and proxies for one test, on free ports of the loopback. They end with the test.

#![allow(dead_code, reason = "each test binary needs some of it")]

pub mod proxy;
#[cfg(feature = "redis")]
pub mod redis_server;
#[cfg(all(feature = "objects", feature = "redis"))]
pub mod s3_server;
#[path = "../../../kvtide-core/tests/support/skipped.rs"]
mod skip;

use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use kvtide_tiers::{Backend, Event, Guarded};
use tokio::runtime::{Handle, Runtime};

pub use self::skip::skipped;

/// Returns the runtime of all tests of a process.
pub fn runtime() -> Handle {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    let build = || tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    RUNTIME.get_or_init(build).handle().clone()
}

/// True if a program is installed.
pub fn is_installed(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok()
}

pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A folder for one test, removed at its end.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new() -> Self {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let own = MADE.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("kvtide-tiers-{}-{own}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    pub fn file(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A process that ends with the test.
pub struct Process(pub Child);

impl Process {
    pub fn signal(&self, name: &str) {
        let status = Command::new("kill").args([format!("-{name}"), self.0.id().to_string()]).status().unwrap();
        assert!(status.success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The longest wait for something that must happen: only a failure takes that long.
pub const LIMIT: Duration = Duration::from_secs(120);

/// Waits until a server listens on the port.
pub fn wait_for(port: u16) {
    let start = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(start.elapsed() < LIMIT, "no server listens on {port}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Retries until a condition holds.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < LIMIT, "never: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Returns a deadline that only a stall reaches.
pub fn later() -> Instant {
    Instant::now() + LIMIT
}

/// Returns a deadline that passes soon.
pub fn soon() -> Instant {
    Instant::now() + Duration::from_millis(200)
}

/// Returns the result of a call, after checking that it ended soon after its deadline; allows for a busy machine.
pub fn in_time<T>(deadline: Instant, call: impl FnOnce() -> T) -> T {
    let result = call();
    let late = Instant::now().saturating_duration_since(deadline);
    assert!(late < Duration::from_secs(15), "{late:?} after the deadline");
    result
}

/// Returns the unread events: `-` and the fault for unavailable, `+` for available.
pub fn events<B: Backend>(store: &Guarded<B>) -> Vec<String> {
    std::iter::from_fn(|| store.next_event())
        .map(|event| match event {
            Event::Unavailable(fault) => format!("-{}", fault.kind.as_str()),
            Event::Available => "+".to_owned(),
        })
        .collect()
}

/// Returns a value that depends on its index.
pub fn value(index: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|place| (index * 31 + place * 7 + place / 251) as u8).collect()
}

pub fn keys(count: usize) -> Vec<String> {
    (0..count).map(|index| format!("key-{index}")).collect()
}

pub fn entries<'a>(keys: &[String], values: &'a [Vec<u8>]) -> Vec<(String, &'a [u8])> {
    keys.iter().cloned().zip(values.iter().map(Vec::as_slice)).collect()
}
