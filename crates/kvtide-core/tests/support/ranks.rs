//! Ranks that may change once, in their simplest form.

use kvtide_core::paged::{PRIORITY_DEFAULT, RANK_MAX};

use super::policies::{Policy, scattered};

/// A rank, or a priority, until a time, and the one from then on.
pub type Step = (u8, u8, u64);

pub const NEVER: u64 = u64::MAX;

pub fn at(step: Step, now: u64) -> Step {
    if step.2 <= now || step.0 == step.1 { (step.1, step.1, NEVER) } else { step }
}

pub fn join(a: Step, b: Step) -> Step {
    let (top, floor) = (a.0.max(b.0), a.1.max(b.1));
    let limits = [a.2, b.2].into_iter().filter(|&until| until != NEVER);
    let until = if top > floor { limits.max() } else { limits.min() };
    at((top, floor, until.unwrap_or(NEVER)), 0)
}

/// The ranks that follow from a block's own priorities.
pub fn ranks(policy: Policy, own: Step, depth: Option<u32>) -> Step {
    at((rank(policy, own.0, depth), rank(policy, own.1, depth), own.2), 0)
}

/// The rank that a block is to have.
fn rank(policy: Policy, priority: u8, depth: Option<u32>) -> u8 {
    let rank = match policy {
        Policy::Default => priority,
        Policy::Scattered(seed) => scattered(seed, priority, depth),
        Policy::Table(seed) => scattered(seed, priority, Some(depth.map_or(0, |depth| depth.min(255)))),
    };
    rank.min(RANK_MAX)
}

/// A priority that is given, until a limit or for good.
pub fn step_of(priority: u8, until: Option<u64>) -> Step {
    at((priority, until.map_or(priority, |_| PRIORITY_DEFAULT), until.unwrap_or(NEVER)), 0)
}
