//! The workloads, one file each. A new one is a file here and a line in [`ALL`].

mod attention;
mod growable;
mod memcpy;
mod paged;
mod paged_bulk;
mod prefill;
mod rollback;
mod rotating;
mod rotating_windows;

use half::f16;
use kvtide_tensor::DType;
use serde::{Deserialize, Serialize};

use crate::claim::Claim;
use crate::harness::{Measured, Result, Role};
use crate::memory::Memory;
use crate::statistics::Spread;

/// A workload at the size that is reported.
pub struct Workload {
    pub id: &'static str,
    pub memory: Memory,
    run: fn(usize) -> Result<Outcome>,
}

/// Every workload, in the order of the report. Those that take memory as part of the work run on both kinds of it.
pub const ALL: &[Workload] = &[
    Workload { id: "rotating-512-f32", memory: Memory::Reused, run: |rounds| rotating::run::<f32>(512, rounds) },
    Workload { id: "rotating-4096-f32", memory: Memory::Reused, run: |rounds| rotating::run::<f32>(4096, rounds) },
    Workload { id: "rotating-32768-f32", memory: Memory::Reused, run: |rounds| rotating::run::<f32>(32768, rounds) },
    Workload { id: "rotating-512-f16", memory: Memory::Reused, run: |rounds| rotating::run::<f16>(512, rounds) },
    Workload { id: "rotating-4096-f16", memory: Memory::Reused, run: |rounds| rotating::run::<f16>(4096, rounds) },
    Workload { id: "rotating-32768-f16", memory: Memory::Reused, run: |rounds| rotating::run::<f16>(32768, rounds) },
    Workload {
        id: "rotating-windows",
        memory: Memory::Reused,
        run: |rounds| rotating_windows::run(512, 32768, rounds),
    },
    Workload { id: "prefill", memory: Memory::New, run: |rounds| prefill::run(8192, 4096, 512, rounds) },
    Workload { id: "prefill-reused", memory: Memory::Reused, run: |rounds| prefill::run(8192, 4096, 512, rounds) },
    Workload { id: "growable", memory: Memory::New, run: |rounds| growable::run(8192, rounds) },
    Workload { id: "growable-reused", memory: Memory::Reused, run: |rounds| growable::run(8192, rounds) },
    Workload { id: "rollback", memory: Memory::Reused, run: |rounds| rollback::run(4096, rounds) },
    Workload { id: "paged-token", memory: Memory::Reused, run: |rounds| paged::run(1024, 8, rounds) },
    Workload { id: "paged-bulk", memory: Memory::Reused, run: |rounds| paged_bulk::run(4096, 32, rounds) },
    Workload {
        id: "attention-f32",
        memory: Memory::Reused,
        run: |rounds| attention::decode(DType::F32, 8192, None, rounds),
    },
    Workload {
        id: "attention-f16",
        memory: Memory::Reused,
        run: |rounds| attention::decode(DType::F16, 8192, None, rounds),
    },
    Workload {
        id: "attention-bf16",
        memory: Memory::Reused,
        run: |rounds| attention::decode(DType::BF16, 8192, None, rounds),
    },
    Workload { id: "attention-prefill", memory: Memory::Reused, run: |rounds| attention::prefill(512, 4096, rounds) },
    Workload { id: "attention-pages", memory: Memory::Reused, run: |rounds| attention::pages(8192, None, rounds) },
    Workload { id: "memcpy", memory: Memory::Reused, run: |rounds| memcpy::run(&[1, 32, 256], rounds) },
];

impl Workload {
    /// Measures it for so many rounds, in this process.
    pub fn measure(&self, rounds: usize) -> Result<Outcome> {
        Ok((self.run)(rounds)?.on(self.id, self.memory))
    }
}

/// What a workload measured.
#[derive(Debug, Serialize, Deserialize)]
pub struct Outcome {
    pub id: String,
    pub title: String,
    /// What a lane's nanoseconds are for.
    pub operation: String,
    pub memory: Memory,
    /// Rounds that were counted, of the lane that has the fewest.
    pub rounds: usize,
    pub lanes: Vec<LaneOutcome>,
    pub claims: Vec<Claim>,
}

/// One lane's nanoseconds per operation.
#[derive(Debug, Serialize, Deserialize)]
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
            memory: Memory::Reused,
            rounds: measured.iter().map(|lane| lane.nanoseconds.len()).min().unwrap_or(0),
            lanes: measured.iter().map(lane).collect(),
            claims,
        }
    }

    /// The same, as the workload `id` on this memory.
    fn on(mut self, id: &str, memory: Memory) -> Self {
        for claim in &mut self.claims {
            claim.id = format!("{id}{}", &claim.id[self.id.len()..]);
        }
        self.id = id.to_owned();
        self.memory = memory;
        self
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
            attention::decode(DType::F32, 64, Some(2), 1).unwrap(),
            attention::decode(DType::F16, 64, Some(2), 1).unwrap(),
            attention::decode(DType::BF16, 64, Some(2), 1).unwrap(),
            attention::prefill(8, 64, 1).unwrap(),
            attention::pages(64, Some(2), 1).unwrap(),
            paged_bulk::run(32, 2, 1).unwrap(),
            memcpy::run(&[1], 1).unwrap(),
        ];
        let claims: Vec<&Claim> = outcomes.iter().flat_map(|outcome| &outcome.claims).collect();
        let ids: BTreeSet<&str> = claims.iter().map(|claim| claim.id.as_str()).collect();
        assert_eq!(ids.len(), claims.len());
        for outcome in &outcomes {
            let own = format!("{}/", outcome.id);
            assert!(outcome.claims.iter().all(|claim| claim.id.starts_with(&own)), "{own}");
        }
    }

    #[test]
    fn an_outcome_on_other_memory_has_other_ids() {
        let outcome = prefill::run(64, 32, 8, 1).unwrap().on("prefill-new", Memory::New);
        assert_eq!((outcome.id.as_str(), outcome.memory), ("prefill-new", Memory::New));
        assert_eq!(outcome.claims[0].id, "prefill-new/ours-over-ring");
    }

    #[test]
    fn an_outcome_crosses_from_one_process_to_another() {
        let outcome = rollback::run(32, 1).unwrap();
        let text = serde_json::to_string(&outcome).unwrap();
        let read: Outcome = serde_json::from_str(&text).unwrap();
        // Numbers may lose their last bit on the way.
        let ratio = |outcome: &Outcome| outcome.claims[0].ratio;
        assert!((ratio(&read) / ratio(&outcome) - 1.).abs() < 1e-9);
        let names = |outcome: &Outcome| outcome.lanes.iter().map(|lane| lane.name.clone()).collect::<Vec<_>>();
        assert_eq!((read.id.as_str(), names(&read)), (outcome.id.as_str(), names(&outcome)));
    }
}
