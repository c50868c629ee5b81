//! Compares `RollbackPlanner` with a list that records when each position was last written.

use kvtide_core::{Code, Mark, RollbackPlanner};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use crate::slots::{Slots, all};
use crate::support;

#[derive(Clone, Debug)]
enum Op {
    /// Nodes whose parents lie so many nodes back.
    Append(Vec<u32>),
    Commit(u64),
    Mark,
    Rollback(u32),
    /// At each step one of the children.
    Accept(Vec<u32>),
}

/// A position's token, and when it was written.
type Written = (u64, usize);

struct Pair {
    planner: RollbackPlanner,
    slots: Slots,
    positions: Vec<Written>,
    total: usize,
    marks: Vec<(Mark, usize, usize)>,
}

impl Pair {
    fn call(&mut self, time: usize, op: &Op) -> Result<(), TestCaseError> {
        let committed = self.planner.committed() as usize;
        match op {
            Op::Append(back) => self.append(time, back)?,
            Op::Commit(len) => {
                let allowed = (committed..=self.total).contains(&(*len as usize));
                prop_assert_eq!(
                    self.planner.commit(*len).map_err(|error| error.code()),
                    refused(allowed, Code::InvalidArgument)
                );
            }
            Op::Mark => self.marks.push((self.planner.mark(), committed, time)),
            Op::Rollback(which) => {
                let Some(which) = (*which as usize).checked_rem(self.marks.len()) else { return Ok(()) };
                let (mark, len, made) = &self.marks[which];
                let kept = *len <= committed && self.positions[..*len].iter().all(|(_, written)| written <= made);
                let done = self.planner.rollback(mark).map_err(|error| error.code());
                prop_assert_eq!(done, refused(kept, Code::SnapshotInvalid));
                self.total = if kept { *len } else { self.total };
            }
            Op::Accept(choices) => self.accept(time, choices)?,
        }
        Ok(())
    }

    fn append(&mut self, time: usize, back: &[u32]) -> Result<(), TestCaseError> {
        let nodes = self.planner.tree().len();
        let parents: Vec<i32> =
            back.iter().zip(nodes..).map(|(&back, node)| (node as i32 - back as i32).max(-1)).collect();
        let tokens: Vec<u64> = (0..back.len() as u64).map(|place| time as u64 * 100 + place).collect();
        let plan = self.planner.plan_append(tokens.len() as u32, Some(&parents))?;
        let shown = self.slots.carry_out(&plan, &tokens);
        self.planner.commit_append(&plan, Some(&parents))?;
        tokens.iter().for_each(|&token| {
            self.write(self.total, token, time);
            self.total += 1;
        });
        prop_assert_eq!(shown, all(self.tokens()));
        Ok(())
    }

    fn tokens(&self) -> Vec<u64> {
        self.positions[..self.total].iter().map(|written| written.0).collect()
    }

    fn write(&mut self, position: usize, token: u64, time: usize) {
        self.positions.resize(self.positions.len().max(position + 1), (0, 0));
        self.positions[position] = (token, time);
    }

    fn accept(&mut self, time: usize, choices: &[u32]) -> Result<(), TestCaseError> {
        let tree = self.planner.tree().clone();
        let mut path: Vec<u32> = Vec::new();
        for &choice in choices {
            let longer = |node: u32| [&path[..], &[node]].concat();
            let known = |&node: &u32| tree.check_path(&longer(node)).is_ok();
            let children: Vec<u32> = (0..tree.len() as u32).filter(known).collect();
            let Some(place) = (choice as usize).checked_rem(children.len()) else { break };
            path.push(children[place]);
        }
        let first = self.planner.committed() as usize;
        let kept: Vec<u64> = path.iter().map(|&node| self.positions[first + node as usize].0).collect();
        let (moves, written) = self.planner.plan_path(&path)?;
        let before = self.slots.clone();
        self.slots.shift(&before, &moves);
        self.planner.commit_path(path.len() as u32, written)?;
        for (place, (&node, token)) in path.iter().zip(kept).enumerate() {
            let moved = node as usize != place;
            prop_assert_eq!((written.start..written.end()).contains(&((first + place) as u32)), moved);
            if moved {
                self.write(first + place, token, time);
            }
        }
        self.total = first + path.len();
        Ok(())
    }
}

fn refused(allowed: bool, code: Code) -> Result<(), Code> {
    if allowed { Ok(()) } else { Err(code) }
}

fn planner_follows_the_list(ops: Vec<Op>) -> Result<(), TestCaseError> {
    let planner = RollbackPlanner::new()?;
    let mut pair = Pair { planner, slots: Slots::default(), positions: vec![], total: 0, marks: vec![] };
    for (time, op) in ops.iter().enumerate() {
        pair.call(time, op)?;
        let state = pair.planner.state();
        prop_assert_eq!(state.len() as usize, pair.total);
        prop_assert_eq!(pair.slots.read(&state.live()), all(pair.tokens()));
        prop_assert_eq!(pair.planner.tree().len() as u32, pair.planner.total() - pair.planner.committed());
    }
    Ok(())
}

#[test]
fn random_calls_against_a_list() {
    let op = prop_oneof![
        4 => prop::collection::vec(1..5u32, 0..7).prop_map(Op::Append),
        3 => (0..16u64).prop_map(Op::Commit),
        2 => Just(Op::Mark),
        2 => any::<u32>().prop_map(Op::Rollback),
        3 => prop::collection::vec(any::<u32>(), 0..6).prop_map(Op::Accept),
    ];
    support::run("RollbackPlanner", 50_000, prop::collection::vec(op, 0..40), planner_follows_the_list);
}
