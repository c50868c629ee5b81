//! Look-ups a second, events a second, and bytes a block: `cargo run --release -p kvtide-router --example lookups [blocks] [workers]`.
//!
//! Prompts of 10,000 tokens are 625 blocks of 16, hashed beforehand. They share system prompts, and end where their workers' blocks end or
//! in the middle of them. `a second` goes through prompts whose keys lie somewhere in memory, and fetching them is counted; in the other
//! columns the keys were read just before, as they are where they have just been hashed, and reading the clock is counted.

use std::hint::black_box;
use std::time::Instant;

use kvtide_router::{Policy, Tier, WorkerId, WorkerIndex};

const BLOCKS: usize = 625;

fn mix(number: u64) -> u64 {
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        (mix(self.0) % limit as u64) as usize
    }
}

/// The keys of a prompt: some blocks of a system prompt, then its own.
fn prompt(system: usize, shared: usize, own: usize) -> Vec<u64> {
    let key = |block: usize| {
        let of = if block < shared { 1 << 40 | (system as u64) << 20 } else { 1 << 60 | (own as u64) << 20 };
        mix(of | block as u64)
    };
    (0..BLOCKS).map(key).collect()
}

/// Stores prompts until there are so many blocks, and says how fast that was.
fn fill(index: &mut WorkerIndex, ids: &[WorkerId], blocks: usize, numbers: &mut Numbers) -> Vec<Vec<u64>> {
    let mut prompts = Vec::new();
    let (mut events, start) = (0, Instant::now());
    while index.usage().blocks < blocks {
        let shared = 16 + numbers.below(8) * 16;
        let keys = prompt(numbers.below(40), shared, prompts.len());
        // Two of three prompts lie at one worker, the others at two; of each some is there.
        for _ in 0..1 + usize::from(numbers.below(3) == 0) {
            let there = 100 + numbers.below(BLOCKS - 99);
            index.store(ids[numbers.below(ids.len())], Tier::Gpu, None, &keys[..there]).expect("memory");
            events += there;
        }
        prompts.push(keys);
    }
    let storing = start.elapsed().as_secs_f64();
    let usage = index.usage();
    println!("| workers | blocks | sets | bytes a block | blocks stored a second |");
    println!("| ---: | ---: | ---: | ---: | ---: |");
    println!(
        "| {} | {} | {} | {:.1} | {:.2} M |",
        usage.workers,
        usage.blocks,
        usage.sets,
        usage.bytes as f64 / usage.blocks as f64,
        events as f64 / storing / 1e6
    );
    prompts
}

fn main() {
    let mut arguments = std::env::args().skip(1).filter_map(|argument| argument.parse::<usize>().ok());
    let (blocks, workers) = (arguments.next().unwrap_or(1_000_000), arguments.next().unwrap_or(64));
    let mut numbers = Numbers(1);
    let mut index = WorkerIndex::new();
    let ids: Vec<WorkerId> = (0..workers).map(|_| index.add_worker().expect("a worker")).collect();

    let prompts = fill(&mut index, &ids, blocks, &mut numbers);

    println!("\n| look-up of {BLOCKS} blocks | a second | mean | p50 | p99 | p99.9 |");
    println!("| --- | ---: | ---: | ---: | ---: | ---: |");
    let order: Vec<usize> = (0..2_000_000).map(|_| numbers.below(prompts.len())).collect();
    for &id in &ids {
        index.set_load(id, numbers.below(200) as f64).expect("a worker");
    }
    measure("nothing: what the clock takes", &prompts, &order, |keys| keys.len());
    measure("find", &prompts, &order, |keys| index.find(keys).blocks);
    measure("choose, longest prefix", &prompts, &order, |keys| {
        index.choose(keys, Policy::LongestPrefix).expect("a policy").map_or(0, |choice| choice.blocks)
    });
    let cost = Policy::Cost { load_weight: 1.0 };
    measure("choose, by cost", &prompts, &order, |keys| {
        index.choose(keys, cost).expect("a policy").map_or(0, |choice| choice.blocks)
    });
    let few = &order[..order.len() / 10];
    let mut lengths = Vec::new();
    measure("lengths of all workers", &prompts, few, |keys| {
        index.lengths(keys, &mut lengths);
        lengths.len()
    });
    let holder = |keys: &[u64]| index.find(keys).workers.next().expect("somebody has something");
    measure("find, and tiers of the first", &prompts, few, |keys| index.tiers(keys, holder(keys)).gpu);

    let start = Instant::now();
    let mut removed = 0;
    for (at, keys) in prompts.iter().enumerate().take(prompts.len() / 4) {
        for &worker in &ids[..4.min(workers)] {
            for &key in keys.iter().rev() {
                index.remove(worker, Tier::Gpu, &[key]).expect("memory");
                removed += 1;
            }
        }
        black_box(at);
    }
    println!("\nremovals, last block first: {:.2} M a second", removed as f64 / start.elapsed().as_secs_f64() / 1e6);
    let start = Instant::now();
    index.remove_worker(ids[workers - 1]).expect("memory");
    println!("a worker gone: {:.1} ms", start.elapsed().as_secs_f64() * 1e3);
}

fn measure(name: &str, prompts: &[Vec<u64>], order: &[usize], mut look: impl FnMut(&[u64]) -> usize) {
    let start = Instant::now();
    for &at in order {
        black_box(look(&prompts[at]));
    }
    let a_second = order.len() as f64 / start.elapsed().as_secs_f64();
    let mut times: Vec<u64> = Vec::with_capacity(order.len());
    let mut keys = Vec::with_capacity(BLOCKS);
    for &at in order {
        keys.clone_from(&prompts[at]);
        let start = Instant::now();
        black_box(look(black_box(&keys)));
        times.push(start.elapsed().as_nanos() as u64);
    }
    let mean = times.iter().sum::<u64>() / times.len() as u64;
    times.sort_unstable();
    let percentile = |part: f64| times[((times.len() - 1) as f64 * part) as usize];
    let [p50, p99, p999] = [0.5, 0.99, 0.999].map(percentile);
    println!("| {name} | {:.2} M | {mean} ns | {p50} ns | {p99} ns | {p999} ns |", a_second / 1e6);
}
