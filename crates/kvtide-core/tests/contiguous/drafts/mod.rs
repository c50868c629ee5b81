//! Transactions of the contiguous planners, in a simulation that keeps every token.

mod planners;
mod run;

use kvtide_core::{GrowablePlanner, RollbackPlanner, RotatingOptions, RotatingPlanner};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use self::planners::Drafting;
use self::run::Run;
use crate::support;

type Done = Result<(), TestCaseError>;

/// A call. Numbers that choose among what is there are taken modulo how much there is.
#[derive(Clone, Debug)]
enum Op {
    /// On the cache itself.
    Append(u32),
    Begin(u32),
    Draft(u32),
    /// Nodes, each so many before itself.
    Tree(Vec<u32>),
    Commit(u64),
    /// At each step one of the children.
    Path(Vec<u32>),
    AnyPath(Vec<u32>),
    Drop(u32),
}

fn calls() -> impl Strategy<Value = Vec<Op>> {
    let back = prop_oneof![6 => 1..4u32, 1 => 0..9u32];
    let which = || any::<u32>();
    let op = prop_oneof![
        4 => (0..6u32).prop_map(Op::Append),
        4 => prop_oneof![2 => Just(0), 1 => 0..20u32].prop_map(Op::Begin),
        4 => prop_oneof![3 => 1..3u32, 1 => 0..30u32].prop_map(Op::Draft),
        3 => prop::collection::vec(back, 0..7).prop_map(Op::Tree),
        4 => (0..9u64).prop_map(Op::Commit),
        3 => prop::collection::vec(which(), 0..5).prop_map(Op::Path),
        1 => prop::collection::vec(0..6u32, 0..4).prop_map(Op::AnyPath),
        2 => which().prop_map(Op::Drop),
    ];
    prop::collection::vec(op, 0..40)
}

fn follows_the_list<P: Drafting>(planner: P, ops: &[Op]) -> Done {
    let mut run = Run::new(planner);
    for op in ops {
        run.call(op)?;
        run.check()?;
    }
    Ok(())
}

#[test]
fn drafts_behind_a_growing_cache() {
    support::run("Drafts on GrowablePlanner", 20_000, (0..6u32, calls()), |(initial, ops)| {
        follows_the_list(GrowablePlanner::new(initial, 10_000)?, &ops)
    });
}

#[test]
fn drafts_behind_tentative_tokens() {
    support::run("Drafts on RollbackPlanner", 20_000, calls(), |ops| follows_the_list(RollbackPlanner::new()?, &ops));
}

#[test]
fn drafts_behind_a_window() {
    let options = (1..9u32, 0..4u32, 0..14u32, prop_oneof![5 => 0..9u32, 1 => Just(64)])
        .prop_map(|(window, sinks, capacity, slack)| RotatingOptions { window, sinks, capacity, slack });
    support::run("Drafts on RotatingPlanner", 50_000, (options, calls()), |(options, ops)| {
        follows_the_list(RotatingPlanner::new(options)?, &ops)
    });
}

#[test]
fn a_window_moves_to_the_front_as_seldom_as_appends_would_move_it() {
    let (window, slack) = (64, 32);
    let mut planner = RotatingPlanner::new(RotatingOptions { window, sinks: 2, capacity: 0, slack }).unwrap();
    let (mut moved, mut kept) = (0, 0);
    for round in 0..2000 {
        let plan = planner.plan_draft(5, 8, false).unwrap();
        assert!(round < 100 || plan.resize.is_none());
        moved += plan.moves().filter(|moved| !moved.is_identity()).map(|moved| moved.source.len).sum::<u32>();
        planner.commit_draft(plan.next);
        planner.cut(3);
        planner.settle();
        kept += 2;
    }
    assert!(moved <= (kept / (slack - 8) + 1) * window, "{moved} rows for {kept} tokens");
}
