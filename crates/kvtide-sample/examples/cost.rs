//! Measures the cost of calls: `cargo run --release -p kvtide-sample --example cost`. Prints the best of many rounds in
//! microseconds.

use std::hint::black_box;
use std::time::Instant;

use kvtide_sample::{Drafts, Options, PromptLookup, Sampler, Workspace};

const VOCABULARY: u32 = 150_000;
const ROUNDS: u32 = 40;

/// Roughly normal logits with a deviation of 3 and a few tokens far above, like those of a language model.
fn logits() -> Vec<f32> {
    let uniform = |id: u32, salt: u32| ((id ^ salt).wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 24) as f32;
    let bulk = |id: u32| (0..12).map(|salt| uniform(id, salt * 77_777_777)).sum::<f32>() * 3.0 - 18.0;
    (0..VOCABULARY).map(|id| bulk(id) + if id % 9973 == 0 { 12.0 } else { 0.0 }).collect()
}

fn best(mut call: impl FnMut()) -> f64 {
    let one = |_| {
        let start = Instant::now();
        call();
        start.elapsed().as_secs_f64() * 1e6
    };
    (0..ROUNDS).map(one).fold(f64::INFINITY, f64::min)
}

fn main() -> Result<(), kvtide_sample::Error> {
    let row = logits();
    let mask = vec![0x5555_5555; VOCABULARY.div_ceil(32) as usize];
    let base = Options::default;
    let cases = [
        ("greedy", Options { temperature: 0.0, ..base() }),
        ("temperature", base()),
        ("top-k 50", Options { top_k: Some(50), ..base() }),
        ("top-p 0.9", Options { top_p: 0.9, ..base() }),
        ("min-p 0.05", Options { min_p: 0.05, ..base() }),
        (
            "top-k 50, top-p 0.9, repetition 1.1",
            Options { top_k: Some(50), top_p: 0.9, repetition_penalty: 1.1, ..base() },
        ),
        ("greedy, 5 log-probabilities", Options { temperature: 0.0, logprobs: Some(5), ..base() }),
        ("flat, top-p 0.9", Options { top_p: 0.9, temperature: 100.0, ..base() }),
    ];
    let mut workspace = Workspace::default();
    println!("{VOCABULARY} logits; µs a call, then with a mask");
    for (name, options) in cases {
        let sampler = Sampler::new(options, &(0..1000).collect::<Vec<_>>())?;
        let plain = best(|| drop(black_box(sampler.sample(&row, None, &mut workspace))));
        let masked = best(|| drop(black_box(sampler.sample(&row, Some(&mask), &mut workspace))));
        println!("{name:<40} {plain:>8.0} {masked:>8.0}");
    }
    let other: Vec<f32> = row.iter().rev().copied().collect();
    for (name, options) in
        [("a drafted token, temperature", base()), ("a drafted token, top-k 50", Options { top_k: Some(50), ..base() })]
    {
        let sampler = Sampler::new(options, &[])?;
        let token = sampler.drafter().sample(&other, None, &mut workspace)?.token;
        let drafts = [other.as_slice()];
        let rows = [row.as_slice(), row.as_slice()];
        let spent =
            best(|| drop(black_box(sampler.verify(&rows, &[token], Drafts::Logits(&drafts), &[], &mut workspace))));
        println!("{name:<40} {spent:>8.0}");
    }
    let tokens: Vec<u32> = (0..100_000u32).map(|place| place.wrapping_mul(2_654_435_761) >> 20).collect();
    let mut lookup = PromptLookup::new(2, 4)?;
    let start = Instant::now();
    lookup.push(&tokens);
    println!("lookup of 100,000 tokens, 2 to 4 long: {:.3} µs a token", start.elapsed().as_secs_f64() * 1e6 / 1e5);
    println!("a draft of 8 from them: {:.3} µs", best(|| drop(black_box(lookup.draft(8)))));
    Ok(())
}
