//! What this machine's memory gives: memcpy at sizes in and out of its caches, by one thread and by two.
//!
//! The limit of everything else here. It has no ratio to reach: it is the machine's, not ours.

use super::Outcome;
use crate::harness::{Lane, Result, Role, Stopwatch, measure};
use crate::large::filled;

const MEBIBYTE: usize = 1 << 20;

fn lane(mebibytes: usize, threads: usize) -> Lane<'static> {
    let bytes = mebibytes * MEBIBYTE;
    let (source, mut target) = (filled(bytes, 1u8), filled(bytes, 2u8));
    // Small ones several times over, so that a round is more than a few ticks of the clock.
    let times = (32 / mebibytes).max(1);
    let name = format!("{mebibytes} MiB, {threads} {}", if threads == 1 { "thread" } else { "threads" });
    Lane::new(Role::Limit, name, (mebibytes * times) as u32, move |stopwatch: &mut Stopwatch| {
        stopwatch.time_on(threads, || {
            for _ in 0..times {
                let (source, target) = (std::hint::black_box(&source), std::hint::black_box(&mut target));
                if threads == 1 {
                    target.copy_from_slice(source);
                } else {
                    let share = bytes.div_ceil(threads);
                    std::thread::scope(|scope| {
                        for (source, target) in source.chunks(share).zip(target.chunks_mut(share)) {
                            scope.spawn(move || target.copy_from_slice(source));
                        }
                    });
                }
            }
        });
        Ok(())
    })
}

pub fn run(mebibytes: &[usize], rounds: usize) -> Result<Outcome> {
    let mut lanes: Vec<Lane<'_>> = mebibytes.iter().map(|&size| lane(size, 1)).collect();
    // Starting threads would be most of the smaller ones.
    lanes.extend(mebibytes.iter().filter(|&&size| size >= 32).map(|&size| lane(size, 2)));
    let measured = measure(lanes, rounds)?;
    Ok(Outcome::new("memcpy", "memcpy", "MiB", &measured, Vec::new()))
}
