//! Measures this machine's memory: memcpy at sizes in and out of its caches, with one thread and with two.
//!
//! It is the limit of all other workloads. It has no target, because it measures the machine and not kvtide.

use std::hint::black_box;

use kvtide_bench::{Lane, Result, Role};

use super::Outcome;
use super::paged_bulk::copy;
use crate::large::filled;

fn lane(mebibytes: usize, threads: usize) -> Lane<'static> {
    let bytes = mebibytes << 20;
    let (source, mut target) = (filled(bytes, 1u8), filled(bytes, 2u8));
    // Small copies are repeated, so that a round is longer than a few ticks of the clock.
    let times = (32 / mebibytes).max(1);
    let name = format!("{mebibytes} MiB, {threads} {}", if threads == 1 { "thread" } else { "threads" });
    Lane::timed(Role::Limit, name, (mebibytes * times) as u32, move |stopwatch| {
        stopwatch.time_on(threads, || {
            (0..times).for_each(|_| copy(black_box(&mut target), black_box(&source), threads));
        });
        Ok(())
    })
}

pub fn run(mebibytes: &[usize], rounds: usize) -> Result<Outcome> {
    let mut lanes: Vec<Lane<'_>> = mebibytes.iter().map(|&size| lane(size, 1)).collect();
    // With small copies, most of the time would be starting threads.
    lanes.extend(mebibytes.iter().filter(|&&size| size >= 32).map(|&size| lane(size, 2)));
    Outcome::of("memcpy", "MiB", lanes, rounds)
}
