//! Compares random traces on the paged planner, with all of its features, with a model that stores the values of every
//! sequence separately: after each call, each sequence sees the same values, and the bookkeeping is consistent.
//!
//! Values of known tokens are those that a model would compute: they depend on the tokens before, and on the tenant. So
//! a prefix must show exactly these values, and a prefix that is shown to another tenant is detected.

mod calls;
#[path = "../paged_random/memory.rs"]
mod memory;
mod model;
mod planner;
#[path = "../support/policies.rs"]
mod policies;
mod regressions;
#[path = "../support/mod.rs"]
mod support;
mod tables;
mod world;

use proptest::test_runner::TestCaseError;

use calls::{Call, Shape};
use planner::PlayedCache;
use world::World;

fn planner_follows_the_model((shape, calls): (Shape, Vec<Call>)) -> Result<(), TestCaseError> {
    let mut world = World::new(shape, PlayedCache::new(&shape));
    for call in &calls {
        world.call(call)?;
        world.check()?;
    }
    world.end()
}

#[test]
fn random_traces_against_sequences_apart() {
    let calls = (calls::shape(), proptest::collection::vec(calls::call(), 0..40));
    support::run("world", 20_000, calls, planner_follows_the_model);
}

/// Runs one trace, as a failing run prints it.
fn replay(trace: (Shape, Vec<Call>)) {
    if let Err(why) = planner_follows_the_model(trace) {
        panic!("{why}");
    }
}
