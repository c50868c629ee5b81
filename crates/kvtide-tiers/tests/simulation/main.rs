//! Simulates workers with tiers and files in one thread: the seed alone decides the calls, their order and the faults.
//!
//! ```text
//! worker 0, worker 1    a paged cache, a memory tier, jobs: restores, writers, probers, saves, loads
//!    |  |
//!    |  shelf           the store of both: calls fail, are late, are abandoned; entries are lost, torn, exchanged
//!    disk               the files of both: calls fail, power fails
//! clock                 of gates and files
//! ```
//!
//! After each call, each sequence has exactly the tokens and rows of a model that computes everything, no prompt finds
//! tokens that were not computed under its salt, and the bookkeeping is consistent. At the end, nothing is held any
//! more, and once the faults stop, blocks are offloaded and restored again. `KVTIDE_CASES` sets the number of traces.

mod calls;
#[path = "../../../kvtide-files/tests/files/disk.rs"]
#[allow(dead_code, reason = "files need more of it")]
mod disk;
mod driven;
mod regressions;
mod rows;
mod run;
mod shelf;
#[path = "../../../kvtide-core/tests/support/mod.rs"]
mod support;
mod worker;
#[path = "../../../kvtide-files/tests/files/world.rs"]
#[allow(dead_code, reason = "files need more of it")]
mod world;

use std::cell::{Cell, RefCell};

use calls::{Call, Shape};
use proptest::test_runner::TestCaseError;
use run::World;

/// Runs a trace. Returns what happened in it, one line for each result.
fn run((shape, calls): &(Shape, Vec<Call>)) -> Result<Vec<String>, TestCaseError> {
    let mut world = World::new(shape);
    for call in calls {
        world.call(call)?;
        world.check()?;
    }
    world.end()
}

/// Runs one trace, as a failing run prints it.
fn replay(trace: (Shape, Vec<Call>)) {
    if let Err(why) = run(&trace) {
        panic!("{why}");
    }
}

/// Results that a trace may have; all of them occur.
const RESULTS: [&str; 8] =
    ["found", "from memory", "from the store", "written", "refused", "loaded", "in a file", "saved"];

#[test]
fn workers_with_faults_follow_the_model() {
    let (seen, ran) = (RefCell::new([0; RESULTS.len()]), Cell::new(0));
    let traces = (calls::shape(), proptest::collection::vec(calls::call(), 0..150));
    support::run("simulation", 1000, traces, |trace| {
        ran.set(ran.get() + 1);
        for line in run(&trace)? {
            let counts = &mut *seen.borrow_mut();
            let is_some = !line.starts_with("0 ");
            RESULTS
                .iter()
                .zip(counts)
                .filter(|(result, _)| is_some && line.contains(**result))
                .for_each(|(_, n)| *n += 1);
        }
        Ok(())
    });
    let seen = seen.into_inner();
    println!("{:?}", RESULTS.iter().zip(&seen).collect::<Vec<_>>());
    assert!(seen.iter().all(|&count| count > 0) || ran.get() < 1000, "{seen:?}: not all of it happened");
}

/// Without this, a seed would not repeat a failure.
#[test]
fn a_trace_runs_alike_each_time() {
    let traces = (calls::shape(), proptest::collection::vec(calls::call(), 20..100));
    support::run("simulation, twice", 60, traces, |trace| {
        let runs = [run(&trace)?, run(&trace)?];
        proptest::prop_assert_eq!(&runs[0], &runs[1]);
        Ok(())
    });
}
