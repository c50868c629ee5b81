//! What is measured: each workload takes its memory, checks what it answers, and hands its lanes to the rounds.

mod append;
mod decode;
mod graph;
mod keys;
mod moves;
mod prefill;
mod prompt;
mod quantise;
mod queries;
mod step;

use kvtide_cuda::Span;

use crate::Result;
use crate::place::Place;
use crate::report;
use crate::rounds::{Amount, Lane, Measured, Role, measure};
use crate::sizes::Sizes;

/// A workload by its id.
pub struct Workload {
    /// What `--only` names.
    pub id: &'static str,
    run: fn(&Bench<'_>) -> Result<Measurement>,
}

/// A title with its sizes, and the rounds of all lanes.
type Measurement = (String, Vec<Measured>);

/// What a workload runs with.
pub struct Bench<'a> {
    place: &'a Place,
    sizes: &'a Sizes,
    rounds: usize,
}

const fn of(id: &'static str, run: fn(&Bench<'_>) -> Result<Measurement>) -> Workload {
    Workload { id, run }
}

/// All of them, in the order in which they run.
pub const ALL: &[Workload] = &[
    of("prompt-append", prompt::append),
    of("page-scatter", prompt::scatter),
    of("page-gather", prompt::gather),
    of("move", moves::apart),
    of("move-overlapping", moves::overlapping),
    of("block-copy", moves::blocks),
    of("block-zero", moves::zeros),
    of("quantise-f8e4m3", quantise::f8e4m3),
    of("quantise-q8", quantise::q8),
    of("quantise-q4", quantise::q4),
    of("dequantise-f8e4m3", quantise::from_f8e4m3),
    of("dequantise-q8", quantise::from_q8),
    of("dequantise-q4", quantise::from_q4),
    of("step-append", step::append),
    of("decode", decode::measure),
    of("step-graph", graph::step),
    of("prefill", prefill::measure),
    of("append-token", append::token),
    of("append-chunk", append::chunk),
];

impl Workload {
    /// Runs it; its memory is given back before it returns.
    pub fn measure(&self, place: &Place, sizes: &Sizes, rounds: usize) -> Result<report::Workload> {
        let (title, lanes) = (self.run)(&Bench { place, sizes, rounds })?;
        Ok(report::Workload { id: self.id, title, lanes })
    }
}

impl Bench<'_> {
    fn measured(&self, title: impl Into<String>, lanes: Vec<Lane<'_>>) -> Result<Measurement> {
        Ok((title.into(), measure(self.place, lanes, self.rounds)?))
    }

    /// The driver's copy that reads and writes as many bytes as `amount` has, in all.
    fn copy<'a>(&'a self, source: Span<'a>, target: Span<'a>, amount: Amount) -> Lane<'a> {
        let bytes = (amount.bytes / 2.0) as usize;
        let amount = Amount::moved(bytes, bytes);
        Lane::new(Role::Limit, "copy", amount, move || self.place.copy(source, target, bytes))
    }
}

/// Bytes in gigabytes, for titles.
fn gigabytes(bytes: usize) -> String {
    format!("{:.2} GB", bytes as f64 / 1e9)
}
