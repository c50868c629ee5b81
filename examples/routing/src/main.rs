//! Simulates prefix routing, and prints its gain as a markdown table:
//! `cargo run --release -p routing -- requests=1000000`.
//!
//! ```text
//! trace          the requests: sessions of several turns, each after a system prompt that sessions share
//! worker_cache   the blocks of one worker, with LRU eviction
//! cluster        combines them: chooses a worker, looks up, computes, evicts, updates the index
//! ```
//!
//! A worker computes one prompt after the other; decoding costs nothing in this simulation. The index learns of changes
//! at once. O(blocks of all prompts). The same options give the same report.
//!
//! Parameters are `name=number`: requests, workers, blocks, rate, prefill, systems, zipf, system, turns, question,
//! answer, think, seed, weight; `only=3` runs only the third policy.

mod cluster;
mod random;
mod trace;
mod worker_cache;

use std::time::Instant;

use cluster::{Routing, SimulatorOptions, simulate};

fn main() {
    let mut options = SimulatorOptions::default();
    let (mut load_weight, mut only) = (1.0, 0);
    for argument in std::env::args().skip(1) {
        let number = |text: &str| text.parse::<f64>().ok().filter(|number| *number >= 0.0);
        let Some((name, value)) = argument.split_once('=').and_then(|(name, text)| Some((name, number(text)?))) else {
            eprintln!("invalid argument {argument:?}: expected name=number");
            std::process::exit(2);
        };
        let trace = &mut options.trace;
        match name {
            "requests" => trace.requests = value as u64,
            "workers" => options.workers = value as usize,
            "blocks" => options.blocks = value as usize,
            "rate" => trace.rate = value,
            "prefill" => options.prefill_rate = value,
            "systems" => trace.system_prompts = value as usize,
            "zipf" => trace.zipf = value,
            "system" => trace.system_tokens = value,
            "turns" => trace.turns = value,
            "question" => trace.question_tokens = value,
            "answer" => trace.answer_tokens = value,
            "think" => trace.think_time = value,
            "seed" => trace.seed = value as u64,
            "weight" => load_weight = value,
            "only" => only = value as usize,
            _ => {
                eprintln!("unknown parameter {name:?}: the head of main.rs lists all");
                std::process::exit(2);
            }
        }
    }
    let trace = &options.trace;
    println!(
        "{} requests at {} a second over {} workers of {} blocks of {} tokens, {} tokens of prompts a second each.\n",
        trace.requests, trace.rate, options.workers, options.blocks, trace.block_size, options.prefill_rate
    );
    println!("| routing | hit rate | busy | busiest / average | first token p50 | p99 | simulated in |");
    println!("| --- | ---: | ---: | ---: | ---: | ---: | ---: |");
    let all = [
        ("round-robin", Routing::RoundRobin),
        ("least loaded", Routing::LeastLoaded),
        ("longest prefix", Routing::LongestPrefix),
        ("prefix and load", Routing::Cost { load_weight }),
    ];
    for (name, routing) in all.into_iter().enumerate().filter(|(at, _)| only == 0 || at + 1 == only).map(|(_, row)| row)
    {
        let start = Instant::now();
        let report = simulate(&options, routing).expect("workers and memory");
        println!(
            "| {name} | {:.1} % | {:.1} % | {:.2} | {:.3} s | {:.3} s | {:.1} s |",
            report.hit_rate() * 100.0,
            report.busy * 100.0,
            report.imbalance,
            report.wait_p50,
            report.wait_p99,
            start.elapsed().as_secs_f64()
        );
    }
}
