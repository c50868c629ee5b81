//! The workloads, one file each. A new one is a file here, a line in [`ALL`], and its ratios in bench/report/peers.ts.

mod attention;
mod growable;
mod memcpy;
mod paged;
mod paged_bulk;
mod prefill;
mod rollback;
mod rotating;

use std::collections::BTreeMap;

use half::f16;
use kvtide_bench::{Lane, Measured, Result, measure};
use kvtide_core::paged::PageFormat::{self, Q4, Q8};
use kvtide_tensor::DType;
use serde::Serialize;

/// A workload with the size of the report.
pub struct Workload {
    pub id: &'static str,
    /// The memory of large allocations: pages that the system provides at the first touch (`new`), or pages that were
    /// touched before (`reused`).
    pub memory: &'static str,
    pub run: fn(usize) -> Result<Outcome>,
}

const fn reused(id: &'static str, run: fn(usize) -> Result<Outcome>) -> Workload {
    Workload { id, memory: "reused", run }
}

const fn on_new(id: &'static str, run: fn(usize) -> Result<Outcome>) -> Workload {
    Workload { id, memory: "new", run }
}

const fn named(id: &'static str, run: fn(usize) -> Result<Outcome>) -> Workload {
    reused(id, run)
}

const fn kind(dtype: DType, format: Option<PageFormat>, group: usize) -> attention::Kind {
    attention::Kind { dtype, format, group }
}

/// Every workload, in the order of the report. Workloads that allocate memory as part of the work run on both kinds.
pub const ALL: &[Workload] = &[
    reused("rotating-512-f32", |rounds| rotating::run::<f32>(512, rounds)),
    reused("rotating-4096-f32", |rounds| rotating::run::<f32>(4096, rounds)),
    reused("rotating-32768-f32", |rounds| rotating::run::<f32>(32768, rounds)),
    reused("rotating-512-f16", |rounds| rotating::run::<f16>(512, rounds)),
    reused("rotating-4096-f16", |rounds| rotating::run::<f16>(4096, rounds)),
    reused("rotating-32768-f16", |rounds| rotating::run::<f16>(32768, rounds)),
    reused("rotating-windows", |rounds| rotating::windows(512, 32768, rounds)),
    on_new("prefill", |rounds| prefill::run(8192, 4096, 512, rounds)),
    reused("prefill-reused", |rounds| prefill::run(8192, 4096, 512, rounds)),
    on_new("growable", |rounds| growable::run(8192, rounds)),
    reused("growable-reused", |rounds| growable::run(8192, rounds)),
    reused("rollback", |rounds| rollback::run(4096, rounds)),
    reused("paged-token", |rounds| paged::run(1024, 8, rounds)),
    reused("paged-bulk", |rounds| paged_bulk::run(4096, 32, rounds)),
    reused("attention-f32", |rounds| attention::decode(DType::F32, 8192, None, rounds)),
    reused("attention-f16", |rounds| attention::decode(DType::F16, 8192, None, rounds)),
    reused("attention-bf16", |rounds| attention::decode(DType::BF16, 8192, None, rounds)),
    reused("attention-prefill", |rounds| attention::prefill(DType::F32, 512, 4096, rounds)),
    reused("attention-prefill-f16", |rounds| attention::prefill(DType::F16, 512, 4096, rounds)),
    reused("attention-pages", |rounds| attention::pages(8192, None, rounds)),
    reused("memcpy", |rounds| memcpy::run(&[1, 32, 256], rounds)),
];

/// Workloads that are measured only by name, and are not in the report.
pub const NAMED: &[Workload] = &[
    named("attention-shared-f32", |rounds| attention::shared(kind(DType::F32, None, 1), 4096, None, rounds)),
    named("attention-shared-f16", |rounds| attention::shared(kind(DType::F16, None, 1), 4096, None, rounds)),
    named("attention-shared-q8", |rounds| attention::shared(kind(DType::F16, Some(Q8), 1), 4096, None, rounds)),
    named("attention-shared-q4", |rounds| attention::shared(kind(DType::F16, Some(Q4), 1), 4096, None, rounds)),
    named("attention-shared-grouped-f32", |rounds| attention::shared(kind(DType::F32, None, 4), 4096, None, rounds)),
    named("attention-shared-grouped-f16", |rounds| attention::shared(kind(DType::F16, None, 4), 4096, None, rounds)),
    named("attention-shared-grouped-q8", |rounds| attention::shared(kind(DType::F16, Some(Q8), 4), 4096, None, rounds)),
];

#[derive(Debug, Serialize)]
pub struct Outcome {
    pub title: String,
    /// The unit of work of a lane's nanoseconds.
    pub operation: &'static str,
    pub lanes: Vec<Measured>,
    /// Numbers that aren't times, by name.
    pub facts: BTreeMap<String, f64>,
}

impl Outcome {
    pub fn new(title: impl Into<String>, operation: &'static str, lanes: Vec<Measured>) -> Self {
        Outcome { title: title.into(), operation, lanes, facts: BTreeMap::new() }
    }

    pub fn of(title: impl Into<String>, operation: &'static str, lanes: Vec<Lane<'_>>, rounds: usize) -> Result<Self> {
        Ok(Self::new(title, operation, measure(lanes, rounds)?))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_workload_runs_at_a_small_size_and_no_two_lanes_of_one_share_a_name() {
        let outcomes = [
            rotating::run::<f32>(64, 1).unwrap(),
            rotating::run::<f16>(64, 1).unwrap(),
            rotating::windows(64, 128, 1).unwrap(),
            prefill::run(64, 32, 8, 1).unwrap(),
            growable::run(32, 1).unwrap(),
            rollback::run(32, 1).unwrap(),
            paged::run(32, 2, 1).unwrap(),
            attention::decode(DType::F32, 64, Some(2), 1).unwrap(),
            attention::decode(DType::F16, 64, Some(2), 1).unwrap(),
            attention::decode(DType::BF16, 64, Some(2), 1).unwrap(),
            attention::prefill(DType::F32, 8, 64, 1).unwrap(),
            attention::prefill(DType::F16, 8, 64, 1).unwrap(),
            attention::pages(64, Some(2), 1).unwrap(),
            attention::shared(kind(DType::F16, None, 1), 512, Some(2), 1).unwrap(),
            attention::shared(kind(DType::F16, Some(Q8), 4), 512, Some(2), 1).unwrap(),
            paged_bulk::run(32, 2, 1).unwrap(),
            memcpy::run(&[1], 1).unwrap(),
        ];
        for Outcome { title, lanes, .. } in &outcomes {
            let names: BTreeSet<&str> = lanes.iter().map(|lane| lane.name.as_str()).collect();
            assert_eq!(names.len(), lanes.len(), "{title}");
            assert!(lanes.iter().all(|lane| lane.nanoseconds.len() == 1), "{title}");
        }
    }
}
