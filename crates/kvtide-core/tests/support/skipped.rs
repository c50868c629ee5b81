//! Tests that miss something on this machine.

use std::io::Write;

/// Reports the running test as SKIPPED, with the reason. It writes to stderr itself: Rust's test harness hides everything that a
/// passing test prints with `println!` or `eprintln!`.
pub fn skipped(reason: &str) {
    let thread = std::thread::current();
    let _ = writeln!(std::io::stderr(), "SKIPPED: {}: {reason}", thread.name().unwrap_or("a test"));
}
