//! Where checkpoints of states are taken, and which are kept: runs traces of 100,000 requests through the rules and
//! through the pool, beside fixed intervals and ends of prompts. `docs/hybrid.md` has the table that
//! `a_cache_of_few_checkpoints_finds_almost_all` prints:
//!
//! ```sh
//! cargo test --release -p kvtide-core --test checkpoint_traces -- --nocapture
//! ```

mod cache;
mod dice;
mod kinds;
mod placement;
mod seen;
mod trace;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use serde_json::Value;

use cache::{Rule, Score, run};
use kinds::Shape;
use placement::{Placing, checkpoints_of};
use seen::{GENERATION, seen_blocks};
use trace::Trace;

const REQUESTS: usize = 100_000;

/// All rules, ours first.
const RULES: [(&str, Rule); 8] = [
    ("kvtide", Rule::Ours),
    ("kvtide's places, LRU", Rule::OursByTime),
    ("every 256", Rule::Every(256)),
    ("every 512", Rule::Every(512)),
    ("every 1024", Rule::Every(1024)),
    ("every 2048", Rule::Every(2048)),
    ("end of the prompt", Rule::PromptEnd),
    ("ends of prompt and answer", Rule::Ends),
];

/// A kind of traces, and the shares of an unlimited cache that our rules find at least: with 10 % and 1 % of the bytes.
#[derive(Clone, Copy)]
struct Kind {
    name: &'static str,
    make: fn(Shape) -> Trace,
    least: [f64; 2],
}

const KINDS: [Kind; 5] = [
    Kind { name: "chats", make: kinds::chats, least: [0.999, 0.985] },
    Kind { name: "documents", make: |shape| kinds::documents(shape, false), least: [0.95, 0.9] },
    Kind { name: "documents, ends named", make: |shape| kinds::documents(shape, true), least: [0.999, 0.94] },
    Kind { name: "agents", make: kinds::agents, least: [0.999, 0.995] },
    Kind { name: "tenants", make: kinds::tenants, least: [0.999, 0.99] },
];

/// Number of slots that take this share of the bytes that a state for each block would take.
fn slots(trace: &Trace, per_mille: usize) -> u32 {
    (trace.tree.blocks() * per_mille / 1000) as u32
}

/// The rows of a trace in the table, for 10 % and 1 % of the bytes.
fn rows_of(kind: Kind) -> String {
    let trace = (kind.make)(Shape { requests: REQUESTS, block_size: 16, seed: 1 });
    let seen = seen_blocks(&trace, GENERATION);
    let mut rows = String::new();
    for ((per_mille, percent), least) in [(100, "10 %"), (10, "1 %")].into_iter().zip(kind.least) {
        let (name, slots) = (format!("{}, {percent}", kind.name), slots(&trace, per_mille));
        let scores: Vec<Score> = RULES.iter().map(|&(_, rule)| run(&trace, &seen, rule, slots)).collect();
        let found: Vec<String> = scores.iter().map(|score| format!("{:.3}", score.share())).collect();
        writeln!(rows, "| {name} | {} |", found.join(" | ")).expect("a string");
        check(&scores, least, &name);
        let per_request = |count: u64| count as f64 / REQUESTS as f64;
        let (cuts, evictions) = (per_request(scores[0].cuts), per_request(scores[0].evictions));
        println!("{name}: {slots} slots, {cuts:.2} cuts and {evictions:.2} evictions a request");
    }
    rows
}

/// Checks our rules against a goal, and against the others.
fn check(scores: &[Score], least: f64, name: &str) {
    let ours = scores[0].share();
    assert!(ours >= least, "{name}: {ours}, expected {least}");
    for (score, (other, rule)) in scores.iter().zip(RULES).skip(1) {
        // If all places of chats fit almost, their last use tells a little more than their usefulness.
        let tolerance = if rule == Rule::OursByTime { 0.002 } else { 0.0 };
        assert!(ours >= score.share() - tolerance, "{name}: {ours}, {other}: {}", score.share());
    }
}

#[test]
fn a_cache_of_few_checkpoints_finds_almost_all() {
    let names: Vec<&str> = RULES.iter().map(|&(name, _)| name).collect();
    let (next, table) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    // Two at once, because a trace takes up to 200 MB.
    thread::scope(|scope| {
        let work = || {
            while let Some((place, &kind)) = KINDS.iter().enumerate().nth(next.fetch_add(1, Ordering::Relaxed)) {
                let rows = rows_of(kind);
                table.lock().expect("a table").insert(place, rows);
            }
        };
        (0..2).for_each(|_| drop(scope.spawn(work)));
    });
    let rows: String = table.into_inner().expect("a table").into_values().collect();
    println!("| trace, bytes | {} |\n|{}\n{rows}", names.join(" | "), " --- |".repeat(names.len() + 1));
}

#[test]
fn the_rules_are_those_of_the_scheduler() {
    let cases: Value = serde_json::from_str(include_str!("cases.json")).expect("JSON");
    let cases = cases.as_array().expect("a list");
    assert!(cases.len() >= 32);
    for case in cases {
        let number = |name: &str| case[name].as_u64().unwrap_or_else(|| panic!("{name} of {case}")) as u32;
        let list = |name: &str| -> Vec<u32> {
            let numbers = case[name].as_array().unwrap_or_else(|| panic!("{name} of {case}"));
            numbers.iter().map(|number| number.as_u64().expect("a position") as u32).collect()
        };
        let salt_from = case["saltFrom"].as_u64().map(|position| position as u32);
        let placing = Placing {
            block_size: number("blockSize"),
            length: number("length"),
            found: number("found"),
            reached: number("reached"),
            seen: number("seen"),
            salt_from,
            named: &list("named"),
            slots: number("slots"),
        };
        assert_eq!(checkpoints_of(&placing), list("positions"), "{case}");
    }
}

#[test]
fn a_trace_has_the_prefixes_that_its_texts_share() {
    let mut trace = Trace::new(4);
    let mut first = trace.empty();
    trace.say(&mut first, 1, 6);
    let mut second = first;
    trace.say(&mut first, 2, 3);
    trace.ask(&mut first, 8, None, Vec::new());
    trace.say(&mut second, 3, 7);
    trace.ask(&mut second, 1, None, Vec::new());
    let (tree, requests) = (&trace.tree, &trace.requests);
    assert_eq!(requests.iter().map(|request| request.prompt.1).collect::<Vec<_>>(), [9, 13]);
    assert_eq!(requests.iter().map(|request| tree.depth(request.prompt.0)).collect::<Vec<_>>(), [2, 3]);
    let seen = tree.deepest(requests[1].prompt.0, |block| tree.is_older(block, 1));
    assert_eq!((tree.depth(seen), tree.blocks()), (1, 6));
    // Every 8 tokens: the answer of the first request leaves two, and the second prompt leaves the first before them.
    let scores = [4, 8].map(|n| run(&trace, &seen_blocks(&trace, 100), Rule::Every(n), 8));
    assert_eq!(scores.map(|score| (score.found, score.possible)), [(4, 4), (0, 4)]);
}

#[test]
fn a_scheduler_remembers_the_latest_prompts() {
    let mut trace = Trace::new(1);
    for (message, tokens) in [(1, 3), (2, 3), (1, 5), (3, 4), (1, 5), (2, 3)] {
        let mut text = trace.empty();
        trace.say(&mut text, message, tokens);
        trace.ask(&mut text, 1, None, Vec::new());
    }
    assert_eq!(seen_blocks(&trace, 100), [0, 0, 3, 0, 5, 3]);
    // The tables change places behind 1 1 1 2 2 2, behind 1 1 1 1 1 3, and behind 3 3 3 1 1 1.
    assert_eq!(seen_blocks(&trace, 6), [0, 0, 3, 0, 5, 0]);
}
