//! Measures the pool's calls as the pool grows: `cargo run --release -p kvtide-bench-pool`. Prints JSON for
//! bench/report/pool.ts.
//!
//! ```text
//! pass 0   calls of BlockPool at 1,000 blocks: each block once, then 15 rounds; at 10,000; ...; prompts are found at 1,000; ...
//! pass 1   the same, in another order: conditions of the machine affect all calls and sizes alike
//! ```
//!
//! Before rounds are timed, the same calls go once through the whole pool: what fits into the processor's caches is
//! there then, as in a pool in steady use. A round in which the thread had to wait for a processor is repeated, if the
//! system reports it; after some attempts it counts as it is.

mod handles;
mod memory;
mod order;
mod prompts;

use std::time::Duration;

use handles::Handles;
use kvtide_bench::waited;
use memory::Memory;
use prompts::{Cached, Live};
use serde_json::json;

const SIZES: [u32; 4] = [1_000, 10_000, 100_000, 1_000_000];
const PASSES: usize = 7;
/// Rounds of a pass.
const ROUNDS: usize = 15;
const ATTEMPTS: usize = 5;

/// Everything that is measured at one size.
struct Pools {
    capacity: u32,
    handles: Handles,
    /// One to look in, and one to change: what was found is evicted later.
    found: Cached,
    replaced: Cached,
    live: Live,
    memory_of_handles: Memory,
    memory_of_prompts: Memory,
}

impl Pools {
    fn new(capacity: u32) -> Self {
        let (handles, found) = (Handles::new(capacity), Cached::new(capacity));
        let [memory_of_handles, memory_of_prompts] = [handles.bytes(), found.bytes()].map(Memory::new);
        let (replaced, live) = (Cached::new(capacity), Live::new(capacity));
        Pools { capacity, handles, found, replaced, live, memory_of_handles, memory_of_prompts }
    }
}

/// Calls that are measured together.
struct Calls {
    names: &'static [&'static str],
    /// The unit of the reported nanoseconds.
    per: &'static str,
    /// Number of units in one pass through the whole pool.
    all: fn(&Pools) -> u32,
    /// Runs a round; returns the number of units, and the duration of each call.
    round: fn(&mut Pools) -> (u32, Vec<Duration>),
}

const CALLS: [Calls; 8] = [
    Calls { names: &["allocate", "free"], per: "call", all: |of| of.capacity, round: |of| of.handles.round() },
    Calls {
        names: &["random read of BlockPool"],
        per: "read",
        all: |of| of.memory_of_handles.lines(),
        round: |of| read(&mut of.memory_of_handles),
    },
    Calls { names: &["match"], per: "block", all: |of| of.capacity, round: |of| of.found.find() },
    Calls {
        names: &["evict", "insert", "drop"],
        per: "block",
        all: |of| of.capacity,
        round: |of| of.replaced.replace(),
    },
    Calls { names: &["ensureCapacity"], per: "block", all: |of| of.capacity, round: |of| of.live.ensure_capacity() },
    Calls { names: &["fork"], per: "call", all: |of| of.live.number(), round: |of| of.live.fork() },
    Calls { names: &["snapshot"], per: "call", all: |of| of.live.number(), round: |of| of.live.snapshot() },
    Calls {
        names: &["random read of PagedKvCache"],
        per: "read",
        all: |of| of.memory_of_prompts.lines(),
        round: |of| read(&mut of.memory_of_prompts),
    },
];

fn read(memory: &mut Memory) -> (u32, Vec<Duration>) {
    let (lines, took) = memory.read();
    (lines, vec![took])
}

/// The nanoseconds of one of each of the calls.
fn round(calls: &Calls, pools: &mut Pools) -> Vec<f64> {
    let mut attempts = 0;
    loop {
        let before = waited();
        let (number, took) = (calls.round)(pools);
        attempts += 1;
        if waited() == before || attempts == ATTEMPTS {
            return took.iter().map(|took| took.as_nanos() as f64 / f64::from(number)).collect();
        }
    }
}

/// Every round of each of the calls.
fn pass(calls: &Calls, pools: &mut Pools, rounds: &mut [Vec<f64>]) {
    let mut left = (calls.all)(pools);
    while left > 0 {
        left = left.saturating_sub((calls.round)(pools).0);
    }
    for _ in 0..ROUNDS {
        rounds.iter_mut().zip(round(calls, pools)).for_each(|(of, time)| of.push(time));
    }
}

fn main() {
    let mut pools: Vec<Pools> = SIZES.iter().map(|&capacity| Pools::new(capacity)).collect();
    let mut rounds: Vec<Vec<Vec<Vec<f64>>>> =
        CALLS.iter().map(|calls| vec![vec![Vec::new(); calls.names.len()]; SIZES.len()]).collect();
    for turn in 0..PASSES {
        for at in 0..CALLS.len() {
            let at = (at + turn) % CALLS.len();
            for (pools, rounds) in pools.iter_mut().zip(&mut rounds[at]) {
                pass(&CALLS[at], pools, rounds);
            }
        }
    }
    for pools in &pools {
        assert!(pools.replaced.evictions() > u64::from(pools.capacity), "blocks were not evicted");
    }
    let mut measured = Vec::new();
    for (calls, sizes) in CALLS.iter().zip(&rounds) {
        for (at, name) in calls.names.iter().enumerate() {
            let nanoseconds: Vec<&Vec<f64>> = sizes.iter().map(|calls| &calls[at]).collect();
            measured.push(json!({ "name": name, "per": calls.per, "nanoseconds": nanoseconds }));
        }
    }
    let bytes: Vec<_> = pools.iter().map(|pools| [pools.handles.bytes(), pools.found.bytes()]).collect();
    println!("{}", json!({ "rounds": PASSES * ROUNDS, "blocks": SIZES, "bytes": bytes, "calls": measured }));
}
