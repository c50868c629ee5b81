//! Picks the worker for a prompt.
//!
//! ```text
//! LongestPrefix   the longest prefix; among the workers that have it, the least loaded one
//! Cost            least (blocks to compute + load_weight · load): a busy worker with a long prefix may lose
//! ```
//!
//! Ties are broken by a hash of the prompt's first block. So prompts spread over the workers even before any load is
//! reported, and prompts with the same start go to the same worker. Cost besides the search: O(workers of the longest
//! prefix); by cost O(workers), and one search for each shorter length that could still win. If some workers keep states,
//! see resumable.

use kvtide_core::Error as CoreError;

use super::search::Step;
use super::worker_id::WorkerId;
use super::worker_index::WorkerIndex;
use super::worker_sets::SetId;
use crate::error::Result;

/// The rule for picking a worker.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Policy {
    /// The worker with the longest prefix.
    LongestPrefix,
    /// The worker with the lowest cost.
    Cost {
        /// The number of blocks to compute that equals one unit of load; not negative.
        load_weight: f64,
    },
}

/// The worker chosen for a prompt.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// The worker.
    pub worker: WorkerId,
    /// Length of the prefix of the prompt from which it can continue, in blocks.
    pub blocks: usize,
    /// Blocks to compute; with `Cost`, plus the load in blocks.
    pub cost: f64,
}

impl WorkerIndex {
    /// Picks the worker for a prompt; `None` if there are no workers.
    pub fn choose(&self, keys: &[u64], policy: Policy) -> Result<Option<Choice>> {
        let weight = match policy {
            Policy::LongestPrefix => None,
            Policy::Cost { load_weight } if load_weight >= 0.0 && load_weight.is_finite() => Some(load_weight),
            Policy::Cost { load_weight } => {
                let given = load_weight.to_string();
                return Err(CoreError::argument("loadWeight", given, "a finite number, 0 or more").into());
            }
        };
        if self.has_states() {
            return Ok(self.choose_resumable(keys, weight));
        }
        let longest = self.longest(keys);
        let Some(weight) = weight else {
            let chosen = if longest.blocks > 0 {
                self.least_busy(self.tree.sets.members(longest.complete), keys)
            } else {
                self.least_busy(self.workers(), keys)
            };
            let cost = (keys.len() - longest.blocks) as f64;
            return Ok(chosen.map(|(worker, _)| Choice { worker, blocks: longest.blocks, cost }));
        };
        Ok(self.cheapest(keys, longest, weight))
    }

    fn cheapest(&self, keys: &[u64], mut step: Step, weight: f64) -> Option<Choice> {
        let least = self.least?;
        let mut best: Option<Choice> = None;
        let mut before = SetId::EMPTY;
        loop {
            let computed = (keys.len() - step.blocks) as f64;
            let joined = if step.blocks > 0 {
                self.least_busy(self.joined(before, step.complete), keys)
            } else {
                self.least_busy(self.workers().filter(|&worker| !self.tree.sets.contains(before, worker)), keys)
            };
            if let Some((worker, load)) = joined {
                let cost = computed + weight * load;
                if best.is_none_or(|best| cost < best.cost) {
                    best = Some(Choice { worker, blocks: step.blocks, cost });
                }
            }
            // No worker has less than the least load: to cost less, a prefix has to be longer than this.
            let enough = best.map_or(-1.0, |best| keys.len() as f64 + weight * least - best.cost);
            if step.blocks == 0 || enough >= 0.0 && self.is_last(keys, step, enough as usize + 1) {
                return best;
            }
            before = step.complete;
            step = self.shorter(keys, step);
        }
    }

    /// The least loaded worker; ties are broken by a hash of the prompt's first block.
    pub(super) fn least_busy(&self, workers: impl Iterator<Item = WorkerId>, keys: &[u64]) -> Option<(WorkerId, f64)> {
        let mut best: Option<(WorkerId, f64)> = None;
        for worker in workers {
            let load = self.load(worker).unwrap_or(0.0);
            let is_less = |(of, least)| load < least || load == least && rank(worker, keys) > rank(of, keys);
            if best.is_none_or(is_less) {
                best = Some((worker, load));
            }
        }
        best
    }
}

/// A pseudo-random number of a worker, the same for all prompts with the same first block.
fn rank(worker: WorkerId, keys: &[u64]) -> u64 {
    let mixed = (keys.first().unwrap_or(&0) ^ worker.index() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93) >> 1
}
