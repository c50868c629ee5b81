//! Compares `GrowablePlanner` with a list.

use kvtide_core::{Code, GrowablePlanner, GrowableState};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use crate::slots::{Slots, all};
use crate::support;

#[derive(Clone, Debug)]
enum Op {
    Append(u32),
    Truncate(u64),
    Increment(u32),
    /// Keeps state and slots.
    Snapshot,
    /// Goes back to what was kept last.
    Restore,
}

fn planner_follows_the_list((initial, max, ops): (u32, u32, Vec<Op>)) -> Result<(), TestCaseError> {
    let mut planner = GrowablePlanner::new(initial, max)?;
    let mut slots = Slots(vec![None; planner.state().slots() as usize]);
    let mut tokens: Vec<u64> = Vec::new();
    let mut kept: Option<(GrowableState, Slots, Vec<u64>)> = None;
    for (time, op) in ops.iter().enumerate() {
        let new = |count: u32| (0..u64::from(count)).map(|place| time as u64 * 100 + place).collect::<Vec<_>>();
        match *op {
            Op::Append(count) => {
                let plan = planner.plan_append(count);
                if tokens.len() + count as usize > max as usize {
                    prop_assert_eq!(plan.map_err(|error| error.code()), Err(Code::CacheOverflow));
                    continue;
                }
                let plan = plan?;
                tokens.extend(new(count));
                prop_assert_eq!(slots.carry_out(&plan, &new(count)), all(tokens.clone()));
                planner.commit(plan.next);
            }
            Op::Truncate(len) if len as usize > tokens.len() => {
                let refusal = planner.truncate(len).map_err(|error| error.code());
                prop_assert_eq!(refusal, Err(Code::CannotRollBack));
            }
            Op::Truncate(len) => {
                planner.truncate(len)?;
                tokens.truncate(len as usize);
            }
            Op::Increment(count) if tokens.len() + count as usize > slots.0.len() => {
                prop_assert_eq!(planner.increment(count).map_err(|error| error.code()), Err(Code::CacheOverflow));
            }
            Op::Increment(count) => {
                let run = planner.increment(count)?;
                prop_assert_eq!((run.start as usize, run.len), (tokens.len(), count));
                tokens.extend(new(count));
                (run.start..run.end()).zip(new(count)).for_each(|(slot, token)| slots.0[slot as usize] = Some(token));
            }
            Op::Snapshot => kept = Some((planner.state(), slots.clone(), tokens.clone())),
            Op::Restore => {
                if let Some((state, then, list)) = kept.clone() {
                    planner.commit(state);
                    (slots, tokens) = (then, list);
                }
            }
        }
        let state = planner.state();
        prop_assert_eq!((state.len() as usize, state.slots() as usize), (tokens.len(), slots.0.len()));
        prop_assert!(state.slots() <= max);
        prop_assert_eq!(slots.read(&state.live()), all(tokens.clone()));
    }
    Ok(())
}

#[test]
fn random_calls_against_a_list() {
    let op = prop_oneof![
        4 => (0..8u32).prop_map(Op::Append),
        2 => (0..12u64).prop_map(Op::Truncate),
        1 => (0..4u32).prop_map(Op::Increment),
        1 => Just(Op::Snapshot),
        1 => Just(Op::Restore),
    ];
    let calls = (0..8u32, 1..30u32, prop::collection::vec(op, 0..40));
    support::run("GrowablePlanner", 50_000, calls, planner_follows_the_list);
}

#[test]
fn an_empty_buffer_grows_and_the_bounds_hold() {
    assert_eq!(GrowablePlanner::new(4, 0).unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(GrowablePlanner::new(4, u32::MAX).unwrap_err().code(), Code::InvalidArgument);
    let planner = GrowablePlanner::new(0, i32::MAX as u32).unwrap();
    assert_eq!(planner.plan_append(5).unwrap().resize, Some(8));
    assert_eq!(planner.plan_append(i32::MAX as u32).unwrap().resize, Some(i32::MAX as u32));
    assert_eq!(planner.plan_append(u32::MAX).unwrap_err().code(), Code::CacheOverflow);
}
