//! The workloads, one file each. A new one is a file here and a line in [`ALL`].

mod growable;
mod memcpy;
mod paged;
mod prefill;
mod rollback;
mod rotating;
mod rotating_windows;

use half::f16;
use serde::Serialize;

use crate::claim::Claim;
use crate::harness::{Measured, Result, Role};
use crate::statistics::Spread;

/// Measures a workload for so many rounds.
pub type Run = fn(usize) -> Result<Outcome>;

/// Every workload by its id, in the order of the report.
pub const ALL: &[(&str, Run)] = &[
    ("rotating-512-f32", |rounds| rotating::run::<f32>(512, rounds)),
    ("rotating-4096-f32", |rounds| rotating::run::<f32>(4096, rounds)),
    ("rotating-32768-f32", |rounds| rotating::run::<f32>(32768, rounds)),
    ("rotating-512-f16", |rounds| rotating::run::<f16>(512, rounds)),
    ("rotating-4096-f16", |rounds| rotating::run::<f16>(4096, rounds)),
    ("rotating-32768-f16", |rounds| rotating::run::<f16>(32768, rounds)),
    ("rotating-windows", |rounds| rotating_windows::run(512, 32768, rounds)),
    ("prefill", |rounds| prefill::run(8192, 4096, 512, rounds)),
    ("growable", |rounds| growable::run(8192, rounds)),
    ("rollback", |rounds| rollback::run(4096, rounds)),
    ("paged-token", |rounds| paged::run(1024, 8, rounds)),
    ("memcpy", |rounds| memcpy::run(&[1, 32, 256], rounds)),
];

/// What a workload measured.
#[derive(Debug, Serialize)]
pub struct Outcome {
    pub id: String,
    pub title: String,
    /// What a lane's nanoseconds are for.
    pub operation: String,
    pub lanes: Vec<LaneOutcome>,
    pub claims: Vec<Claim>,
}

/// One lane's nanoseconds per operation.
#[derive(Debug, Serialize)]
pub struct LaneOutcome {
    pub name: String,
    pub role: Role,
    #[serde(flatten)]
    pub nanoseconds: Spread,
}

impl Outcome {
    pub fn new(id: &str, title: &str, operation: &str, measured: &[Measured], claims: Vec<Claim>) -> Self {
        let lane = |lane: &Measured| LaneOutcome {
            name: lane.name.clone(),
            role: lane.role,
            nanoseconds: Spread::of(&lane.nanoseconds),
        };
        Outcome {
            id: id.to_owned(),
            title: title.to_owned(),
            operation: operation.to_owned(),
            lanes: measured.iter().map(lane).collect(),
            claims,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_workload_runs_at_a_small_size_and_no_two_ratios_share_an_id() {
        let outcomes = [
            rotating::run::<f32>(64, 1).unwrap(),
            rotating::run::<f16>(64, 1).unwrap(),
            rotating_windows::run(64, 128, 1).unwrap(),
            prefill::run(64, 32, 8, 1).unwrap(),
            growable::run(32, 1).unwrap(),
            rollback::run(32, 1).unwrap(),
            paged::run(32, 2, 1).unwrap(),
            memcpy::run(&[1], 1).unwrap(),
        ];
        let claims: Vec<&Claim> = outcomes.iter().flat_map(|outcome| &outcome.claims).collect();
        let ids: BTreeSet<&str> = claims.iter().map(|claim| claim.id.as_str()).collect();
        assert_eq!(ids.len(), claims.len());
        assert!(claims.iter().all(|claim| claim.ratio.is_finite() && claim.ratio > 0.));
    }
}
