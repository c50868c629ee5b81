//! What routing by prefixes is worth, as a table in markdown: `cargo run --release -p kvtide-router --example simulate -- requests=1000000`.
//!
//! Parameters are `name=number`: requests, workers, blocks, rate, prefill, systems, zipf, system, turns, question, answer, think, seed, weight; `only=3`
//! runs the third way of choosing alone.

use std::time::Instant;

use kvtide_router::{Routing, SimulatorOptions, simulate};

fn main() {
    let mut options = SimulatorOptions::default();
    let (mut load_weight, mut only) = (1.0, 0);
    for argument in std::env::args().skip(1) {
        let number = |text: &str| text.parse::<f64>().ok().filter(|number| *number >= 0.0);
        let Some((name, value)) = argument.split_once('=').and_then(|(name, text)| Some((name, number(text)?))) else {
            eprintln!("{argument:?} is no parameter, expected name=number");
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
                eprintln!("{name:?} is not known");
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
