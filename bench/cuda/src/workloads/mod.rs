//! The workloads. Each allocates its memory, checks its results, and passes its lanes to the harness.

mod append;
mod decode;
mod keys;
mod moves;
mod prefill;
mod prompt;
mod quantise;
mod queries;
mod step;

use kvtide_bench::{Amount, Lane, Measured, Role, measure};
use kvtide_cuda::{DeviceMemory, Direction, Span};
use typed_arena::Arena;

use crate::Result;
use crate::place::Place;
use crate::sizes::Sizes;

/// A title with its sizes, and the rounds of all lanes.
type Measurement = (String, Vec<Measured>);

/// A workload by its id, which `--only` selects. It frees its memory before it returns.
type Workload = (&'static str, fn(&Bench<'_>) -> Result<Measurement>);

#[derive(Clone, Copy)]
pub struct Bench<'a> {
    pub place: &'a Place,
    pub sizes: &'a Sizes,
    pub rounds: usize,
    /// Memory that the workload allocates and frees at its end.
    pub memory: &'a Arena<DeviceMemory>,
}

pub const ALL: &[Workload] = &[
    ("prompt-append", prompt::append),
    ("page-scatter", |bench| prompt::carried(bench, Direction::Scatter)),
    ("page-gather", |bench| prompt::carried(bench, Direction::Gather)),
    ("move", moves::apart),
    ("move-overlapping", moves::overlapping),
    ("block-copy", moves::blocks),
    ("block-zero", moves::zeros),
    ("quantise-f8e4m3", |bench| quantise::measured(bench, "f8e4m3", true)),
    ("quantise-q8", |bench| quantise::measured(bench, "q8", true)),
    ("quantise-q4", |bench| quantise::measured(bench, "q4", true)),
    ("dequantise-f8e4m3", |bench| quantise::measured(bench, "f8e4m3", false)),
    ("dequantise-q8", |bench| quantise::measured(bench, "q8", false)),
    ("dequantise-q4", |bench| quantise::measured(bench, "q4", false)),
    ("step-append", step::append),
    ("decode", decode::measure),
    ("prefill", prefill::measure),
    ("append-token", |bench| append::appended(bench, bench.sizes.sequences, 1)),
    ("append-chunk", |bench| append::appended(bench, bench.sizes.chunks, bench.sizes.chunk)),
];

impl<'a> Bench<'a> {
    /// Allocates memory with undefined content.
    fn memory(&self, bytes: usize) -> Result<Span<'a>> {
        Ok(self.memory.alloc(self.place.stream.memory(bytes)?).span())
    }

    fn measured(&self, title: impl Into<String>, lanes: Vec<Lane<'_>>) -> Result<Measurement> {
        Ok((title.into(), measure(lanes, self.rounds)?))
    }

    /// Measures `work` next to a copy from `source` to `target`.
    fn beside_copy(
        &self,
        title: String,
        amount: Amount,
        [source, target]: [Span<'_>; 2],
        work: impl FnMut() -> Result<()>,
    ) -> Result<Measurement> {
        self.measured(title, vec![self.lane(Role::Ours, "kvtide", amount, work), self.copy(source, target, amount)])
    }

    /// A lane that enqueues each piece of work on this device.
    fn lane<'b>(&self, role: Role, name: &str, amount: Amount, mut work: impl FnMut() -> Result<()> + 'b) -> Lane<'b>
    where
        'a: 'b,
    {
        let place = self.place;
        Lane::new(role, name, move |times| place.time(times, &mut work)).of(amount)
    }

    /// A lane of the driver's copy that reads and writes as many bytes in total as `amount` has.
    fn copy<'b>(&self, source: Span<'b>, target: Span<'b>, amount: Amount) -> Lane<'b>
    where
        'a: 'b,
    {
        let (place, bytes) = (self.place, (amount.bytes / 2.0) as usize);
        self.lane(Role::Limit, "copy", Amount::moved(bytes, bytes), move || place.copy(source, target, bytes))
    }
}

fn gigabytes(bytes: usize) -> String {
    format!("{:.2} GB", bytes as f64 / 1e9)
}
