//! Measures layers that keep states: `cargo run --release -p kvtide-bench-states`, with `decode` or `prefill` behind it for
//! one of both. Prints a table of medians, and shares of the limit that was measured in the same rounds.
//!
//! ```text
//! decode    a token for each of many states, which are read and written     limit: copies of the same bytes
//! prefill   2,048 tokens of one sequence                                     limit: as many multiply-adds in registers
//! ```
//!
//! The states of decode are more than the processor's caches hold. Multiply-adds of prefill are those that the chunked form
//! needs at least, with triangles counted as halves.

mod decode;
mod peak;
mod prefill;

use std::error::Error;

use kvtide_bench::{Lane, Measured, Role, measure};
use kvtide_tensor::runtime::{set_threads, threads};

/// Rounds of each workload.
const ROUNDS: usize = 15;

/// The sizes of a layer with a matrix for each head.
#[derive(Clone, Copy)]
pub struct Sizes {
    pub k_heads: usize,
    pub v_heads: usize,
    pub k_dim: usize,
    pub v_dim: usize,
}

impl Sizes {
    /// The floats of a state.
    pub fn state(self) -> usize {
        self.v_heads * self.k_dim * self.v_dim
    }
}

/// The gated delta nets of Qwen3-Next, and the Mamba 2 layers of Granite 4 Tiny.
pub const GATED_DELTA: Sizes = Sizes { k_heads: 16, v_heads: 32, k_dim: 128, v_dim: 128 };
pub const SSM: Sizes = Sizes { k_heads: 1, v_heads: 48, k_dim: 128, v_dim: 64 };

/// Numbers between -1 and 1.
pub fn numbers(count: usize) -> Vec<f32> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn median(measured: &Measured) -> f64 {
    let mut sorted = measured.nanoseconds.clone();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

fn report(workload: &str, threads: usize, lanes: Vec<Lane<'_>>) -> Result<(), Box<dyn Error>> {
    let measured = measure(lanes, ROUNDS)?;
    let limit = measured.iter().find(|lane| lane.role == Role::Limit).map_or(f64::NAN, rate);
    for lane in &measured {
        let unit = if lane.flops.is_some() { "GFLOP/s" } else { "GB/s" };
        let (milliseconds, rate) = (median(lane) / 1e6, rate(lane));
        println!(
            "| {workload} | {threads} | {} | {milliseconds:.2} | {rate:.1} {unit} | {:.2} |",
            lane.name,
            rate / limit
        );
    }
    Ok(())
}

/// The bytes or operations of a nanosecond.
fn rate(lane: &Measured) -> f64 {
    lane.flops.or(lane.bytes).unwrap_or(f64::NAN) / median(lane)
}

fn main() -> Result<(), Box<dyn Error>> {
    let all = threads()?;
    let only = std::env::args().nth(1);
    let wants = |workload: &str| only.as_deref().is_none_or(|only| only == workload);
    println!("| workload | threads | lane | ms | rate | share of the limit |\n| --- | --- | --- | --- | --- | --- |");
    for threads in [1, all].into_iter().take(if all > 1 { 2 } else { 1 }) {
        set_threads(threads)?;
        if wants("decode") {
            let mut states = decode::States::new();
            for batch in [1, 8] {
                report(&format!("decode, batch {batch}"), threads, states.lanes(batch, threads))?;
            }
        }
        let prompts = [prefill::Prompt::gated_delta(), prefill::Prompt::ssm()];
        for prompt in prompts.into_iter().filter(|_| wants("prefill")) {
            report(&format!("prefill, {}", prompt.name), threads, prompt.lanes(threads))?;
        }
    }
    Ok(())
}
