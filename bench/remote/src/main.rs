//! `cargo run --release -p kvtide-remote-bench [-- file of f32]`: what a shared store costs.
//!
//! It starts a redis-server of its own on a free port of the loopback. Lanes run in turn (`bench/harness`), and each line has the median
//! of a lane's rounds and the middle half of them.

mod compression;
mod redis;
mod server;

use kvtide_bench::{Measured, Result};

fn main() -> Result<()> {
    let file = std::env::args().nth(1);
    match server::Server::start() {
        Ok(server) => redis::measure(&server)?,
        Err(reason) => println!("SKIPPED: redis-server: {reason}"),
    }
    compression::measure(file.as_deref())
}

/// The median, and between what the middle half lies.
fn quartiles(numbers: &[f64]) -> [f64; 3] {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| sorted[(sorted.len() - 1) * quarter / 4])
}

/// A line for each lane, with its rate if it moves bytes, and its part of the first one's.
fn show(title: &str, lanes: &[Measured]) {
    println!("\n{title}");
    let first = lanes.first().map_or(1.0, |lane| quartiles(&lane.nanoseconds)[1]);
    for lane in lanes {
        let [low, median, high] = quartiles(&lane.nanoseconds);
        let rate = lane.bytes.map_or(String::new(), |bytes| format!("{:7.2} GB/s", bytes / median));
        let part = first / median;
        println!(
            "  {:44} {:9.3} ms ({:.3} to {:.3}) {rate} {:6.2}x",
            lane.name,
            median / 1e6,
            low / 1e6,
            high / 1e6,
            part
        );
    }
}
