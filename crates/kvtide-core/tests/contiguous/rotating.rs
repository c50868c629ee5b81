//! Compares `RotatingPlanner` with a list that keeps every token.

use kvtide_core::{Code, RotatingOptions, RotatingPlanner, RotatingState, Run, default_slack};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use crate::slots::{Slots, all};
use crate::support;

#[derive(Clone, Debug)]
enum Op {
    Append(u32),
    SetLen(u64),
    Reset,
    /// Keeps state and slots.
    Snapshot,
    /// Goes back to what was kept last.
    Restore,
    /// A new cache takes over what is retained, and so many tokens more.
    Adopt(u32),
}

struct Pair {
    planner: RotatingPlanner,
    slots: Slots,
    tokens: Vec<u64>,
    kept: Option<(RotatingState, Slots, Vec<u64>)>,
    next: u64,
}

impl Pair {
    fn limit(&self) -> usize {
        self.planner.limit() as usize
    }

    fn retained(&self) -> Vec<u64> {
        let RotatingOptions { window, sinks, .. } = self.planner.options();
        let all = self.tokens.len();
        let keeps = |&place: &usize| all <= self.limit() || place < sinks as usize || place + window as usize >= all;
        (0..all).filter(keeps).map(|place| self.tokens[place]).collect()
    }

    fn new_tokens(&mut self, count: u32) -> Vec<u64> {
        let first = self.next;
        self.next += u64::from(count);
        (first..self.next).collect()
    }

    fn append(&mut self, count: u32) -> Result<(), TestCaseError> {
        let plan = self.planner.plan_append(count)?;
        let (before, new) = (self.retained(), self.new_tokens(count));
        self.tokens.extend(&new);
        let shown = self.slots.carry_out(&plan, &new);
        let whole = count > 1 && before.len() + new.len() > self.limit();
        prop_assert_eq!(shown, all(if whole { [before, new].concat() } else { self.retained() }));
        self.planner.commit(plan.next);
        Ok(())
    }

    fn set_len(&mut self, len: u64) -> Result<(), TestCaseError> {
        let current = self.tokens.len() as u64;
        let allowed = len == current || (len < current && self.tokens.len() <= self.limit());
        prop_assert_eq!(self.planner.check_len(len).is_ok(), allowed);
        match self.planner.set_len(len) {
            Ok(()) => self.tokens.truncate(len as usize),
            Err(error) => prop_assert_eq!((error.code(), allowed), (Code::CannotRollBack, false)),
        }
        Ok(())
    }

    fn adopt(&mut self, count: u32) -> Result<(), TestCaseError> {
        let before = self.retained();
        let new = self.new_tokens(count);
        let source = [before, new.clone()].concat();
        self.tokens.extend(new);
        let planner = RotatingPlanner::new(self.planner.options())?;
        let (taken, next) = planner.plan_adopt(source.len() as u32, self.tokens.len() as u64);
        let mut slots = vec![None; next.slots() as usize];
        let places = taken.iter().flat_map(|run| run.start..run.end());
        places.zip(&mut slots).for_each(|(place, slot)| *slot = Some(source[place as usize]));
        (self.planner, self.slots) = (planner, Slots(slots));
        self.planner.commit(next);
        Ok(())
    }

    fn call(&mut self, op: &Op) -> Result<(), TestCaseError> {
        match *op {
            Op::Append(count) => self.append(count)?,
            Op::SetLen(len) => self.set_len(len)?,
            Op::Reset => {
                self.planner.reset();
                self.tokens.clear();
            }
            Op::Snapshot => self.kept = Some((self.planner.state(), self.slots.clone(), self.tokens.clone())),
            Op::Restore => {
                if let Some((state, slots, tokens)) = self.kept.clone() {
                    self.planner.commit(state);
                    (self.slots, self.tokens) = (slots, tokens);
                }
            }
            Op::Adopt(count) => self.adopt(count)?,
        }
        Ok(())
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let state = self.planner.state();
        prop_assert_eq!(state.current(), self.tokens.len() as u64);
        prop_assert_eq!(state.retained() as usize, self.retained().len());
        prop_assert_eq!(state.slots() as usize, self.slots.0.len());
        prop_assert!(state.retained() <= state.capacity() && state.capacity() <= self.planner.limit());
        prop_assert_eq!(self.slots.read(&state.live()), all(self.retained()));
        let dropped = state.current() > u64::from(state.retained());
        let runs = if dropped && self.planner.options().sinks > 0 { 2 } else { 1 };
        prop_assert!(state.live().iter().count() <= runs, "{:?}", state.live());
        prop_assert!(dropped || state.live().iter().all(|run| run.start == 0));
        Ok(())
    }
}

fn planner_follows_the_list((options, ops): (RotatingOptions, Vec<Op>)) -> Result<(), TestCaseError> {
    let planner = RotatingPlanner::new(options)?;
    let slots = Slots(vec![None; planner.state().slots() as usize]);
    let mut pair = Pair { planner, slots, tokens: vec![], kept: None, next: 0 };
    for op in &ops {
        pair.call(op)?;
        pair.check()?;
    }
    Ok(())
}

#[test]
fn random_calls_against_a_list() {
    let options = (1..9u32, 0..4u32, 0..14u32, prop_oneof![5 => 0..9u32, 1 => Just(64)])
        .prop_map(|(window, sinks, capacity, slack)| RotatingOptions { window, sinks, capacity, slack });
    let op = prop_oneof![
        5 => Just(Op::Append(1)),
        3 => (0..8u32).prop_map(Op::Append),
        1 => (0..90u32).prop_map(Op::Append),
        1 => (0..14u64).prop_map(Op::SetLen),
        1 => Just(Op::Reset),
        1 => Just(Op::Snapshot),
        1 => Just(Op::Restore),
        1 => (0..12u32).prop_map(Op::Adopt),
    ];
    let calls = (options, prop::collection::vec(op, 0..40));
    support::run("RotatingPlanner", 50_000, calls, planner_follows_the_list);
}

#[test]
fn a_full_window_moves_once_in_slack_appends() {
    for (window, slack) in [(64, 16), (100, 64), (8, 1), (5, 0)] {
        let options = RotatingOptions { window, sinks: 2, capacity: 0, slack };
        let mut planner = RotatingPlanner::new(options).unwrap();
        let (mut moved, appends) = (0, 10 * window * (slack + 1));
        for append in 0..window + 2 + appends {
            let plan = planner.plan_append(1).unwrap();
            if append >= window + 2 {
                assert_eq!(plan.resize, None);
                moved += plan.moves().filter(|moved| !moved.is_identity()).map(|moved| moved.source.len).sum::<u32>();
            }
            planner.commit(plan.next);
        }
        assert!(moved <= appends / (slack + 1) * window, "{moved} rows in {appends} appends");
    }
}

#[test]
fn bounds_are_checked_and_the_slack_has_a_default() {
    let options = RotatingOptions { window: 0, sinks: 0, capacity: 4, slack: 0 };
    assert_eq!(RotatingPlanner::new(options).unwrap_err().code(), Code::InvalidArgument);
    let options = RotatingOptions { window: i32::MAX as u32, sinks: 0, capacity: 4, slack: 1 };
    assert_eq!(RotatingPlanner::new(options).unwrap_err().code(), Code::InvalidArgument);
    assert_eq!((default_slack(4096), default_slack(100)), (1024, 64));
    let options = RotatingOptions { window: 4, sinks: 0, capacity: 100, slack: 1 };
    let planner = RotatingPlanner::new(options).unwrap();
    assert_eq!((planner.state().capacity(), planner.state().slots()), (4, 5));
    assert_eq!(planner.plan_append(u32::MAX).unwrap_err().code(), Code::CacheOverflow);
    assert_eq!(
        planner.plan_append(0).unwrap().reads,
        kvtide_core::Reads::Shared(kvtide_core::Runs::one(Run::new(0, 0)))
    );
}
