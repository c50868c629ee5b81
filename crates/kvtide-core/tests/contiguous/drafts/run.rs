//! Compares a planner with drafts with lists of every token.

use kvtide_core::{Code, Drafts, TransactionId};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::planners::Drafting;
use super::{Done, Op};
use crate::slots::{Slots, all};

/// A draft: its tokens, and their parents counted from it on.
struct Draft {
    id: TransactionId,
    nodes: Vec<(u64, i64)>,
    branched: bool,
}

pub struct Run<P> {
    planner: P,
    slots: Slots,
    drafts: Drafts,
    tokens: Vec<u64>,
    open: Vec<Draft>,
    next: u64,
}

impl<P: Drafting> Run<P> {
    pub fn new(planner: P) -> Self {
        let slots = Slots(vec![None; planner.slots() as usize]);
        Run { planner, slots, drafts: Drafts::default(), tokens: vec![], open: vec![], next: 0 }
    }

    fn new_tokens(&mut self, count: usize) -> Vec<u64> {
        self.next += count as u64;
        (self.next - count as u64..self.next).collect()
    }

    /// Every token there is, drafted ones last.
    fn everything(&self) -> Vec<u64> {
        let drafted = self.open.iter().flat_map(|draft| draft.nodes.iter().map(|node| node.0));
        self.tokens.iter().copied().chain(drafted).collect()
    }

    fn retained(&self, tokens: &[u64]) -> Vec<u64> {
        let Some((window, sinks)) = self.planner.window() else { return tokens.to_vec() };
        let keeps = |place: usize| tokens.len() <= sinks + window || place < sinks || place + window >= tokens.len();
        (0..tokens.len()).filter(|&place| keeps(place)).map(|place| tokens[place]).collect()
    }

    fn limit(&self) -> usize {
        self.planner.window().map_or(usize::MAX, |(window, sinks)| window + sinks)
    }

    pub fn call(&mut self, op: &Op) -> Done {
        match op {
            Op::Append(count) if self.open.is_empty() => {
                let new = self.new_tokens(*count as usize);
                let plan = self.planner.append(*count)?;
                self.slots.carry_out(&plan, &new);
                self.planner.appended(&plan);
                self.tokens.extend(new);
                Ok(())
            }
            Op::Append(_) => {
                prop_assert_eq!(self.drafts.check_none().map_err(|error| error.code()), Err(Code::TransactionOpen));
                Ok(())
            }
            Op::Begin(room) => {
                self.drafts.check_begin(self.open.last().map(|draft| draft.id))?;
                let plan = self.planner.draft(0, *room, false)?;
                self.slots.carry_out(&plan, &[]);
                self.planner.drafted(plan.next);
                let id = self.drafts.begin(*room);
                self.open.push(Draft { id, nodes: vec![], branched: false });
                Ok(())
            }
            Op::Draft(count) => self.draft(*count as usize, None),
            Op::Tree(back) => {
                let first = self.open.last().map_or(0, |draft| draft.nodes.len());
                let parents: Vec<i32> = (first..).zip(back).map(|(node, &back)| node as i32 - back as i32).collect();
                self.draft(back.len(), Some(&parents))
            }
            Op::Commit(count) => self.commit(*count),
            Op::Path(choices) => {
                let path = self.path(choices);
                self.accept(&path)
            }
            Op::AnyPath(path) => self.accept(path),
            Op::Drop(which) => self.drop(*which),
        }
    }

    fn draft(&mut self, count: usize, parents: Option<&[i32]>) -> Done {
        let new = self.new_tokens(count);
        let everything = self.everything();
        let Some(draft) = self.open.last_mut() else { return Ok(()) };
        let first = draft.nodes.len() as i64;
        let checked = self.drafts.check_append(draft.id, count as u32, parents);
        let fits = |(place, &parent): (usize, &i32)| parent >= -1 && i64::from(parent) < first + place as i64;
        if !parents.is_none_or(|parents| parents.iter().enumerate().all(fits)) {
            prop_assert_eq!(checked.map_err(|error| error.code()), Err(Code::InvalidArgument));
            return Ok(());
        }
        checked?;
        for (place, &token) in new.iter().enumerate() {
            let parent = parents.map_or(first + place as i64 - 1, |parents| parents[place].into());
            draft.nodes.push((token, parent));
        }
        let whole = parents.is_some() || self.drafts.is_branched();
        draft.branched |= parents.is_some() && count > 0;
        let plan = self.planner.draft(count as u32, self.drafts.room(), whole)?;
        let shown = self.slots.carry_out(&plan, &new);
        self.planner.drafted(plan.next);
        self.drafts.append(count as u32, parents);
        let before = self.retained(&everything);
        let expected = if whole {
            [self.retained(&self.tokens), self.everything()[self.tokens.len()..].to_vec()].concat()
        } else if count > 1 && before.len() + count > self.limit() {
            [before, new].concat()
        } else {
            self.retained(&self.everything())
        };
        prop_assert_eq!(shown, all(expected));
        Ok(())
    }

    /// Ends the innermost draft; the tokens of `kept` go to the one below.
    fn ended(&mut self, kept: Vec<(u64, i64)>) {
        let Some(ended) = self.open.pop() else { return };
        match self.open.last_mut() {
            None => self.tokens.extend(kept.iter().map(|node| node.0)),
            Some(parent) => {
                let first = parent.nodes.len() as i64;
                parent.branched |= ended.branched && !kept.is_empty();
                parent.nodes.extend(kept.iter().map(|&(token, parent)| (token, parent + first)));
            }
        }
    }

    fn commit(&mut self, count: u64) -> Done {
        let Some(draft) = self.open.last() else { return Ok(()) };
        let ending = self.drafts.plan_commit(draft.id, Some(count));
        if count > draft.nodes.len() as u64 {
            prop_assert_eq!(ending.map_err(|error| error.code()), Err(Code::InvalidArgument));
            return Ok(());
        }
        let (ending, kept) = (ending?, draft.nodes[..count as usize].to_vec());
        self.planner.end(&ending, &self.drafts);
        self.drafts.end(&ending);
        self.ended(kept);
        Ok(())
    }

    fn path(&self, choices: &[u32]) -> Vec<u32> {
        let (mut path, mut at) = (Vec::new(), -1);
        for &choice in choices {
            let nodes = self.open.last().map_or(&[][..], |draft| &draft.nodes);
            let children: Vec<usize> = (0..nodes.len()).filter(|&node| nodes[node].1 == at).collect();
            let Some(place) = (choice as usize).checked_rem(children.len()) else { break };
            path.push(children[place] as u32);
            at = children[place] as i64;
        }
        path
    }

    fn accept(&mut self, path: &[u32]) -> Done {
        let Some(draft) = self.open.last() else { return Ok(()) };
        let before = path.iter().scan(-1, |before, &node| Some(std::mem::replace(before, i64::from(node))));
        let known = path
            .iter()
            .zip(before)
            .all(|(&node, before)| draft.nodes.get(node as usize).is_some_and(|&(_, parent)| parent == before));
        let first = self.planner.draft_slot(self.drafts.drafted());
        let planned = self.drafts.plan_path(draft.id, path, first);
        if !known {
            prop_assert_eq!(planned.map(|_| ()).map_err(|error| error.code()), Err(Code::InvalidPath));
            return Ok(());
        }
        let kept = (0..).zip(path).map(|(place, &node)| (draft.nodes[node as usize].0, place - 1)).collect();
        let (ending, moves, _) = planned?;
        let before = self.slots.clone();
        self.slots.shift(&before, &moves);
        self.planner.end(&ending, &self.drafts);
        self.drafts.end(&ending);
        if let Some(draft) = self.open.last_mut() {
            draft.branched = false;
        }
        self.ended(kept);
        Ok(())
    }

    /// Drops any of the drafts, with its children.
    fn drop(&mut self, which: u32) -> Done {
        let Some(which) = (which as usize).checked_rem(self.open.len()) else { return Ok(()) };
        let id = self.open[which].id;
        let ending = self.drafts.plan_drop(id).expect("it is open");
        self.planner.end(&ending, &self.drafts);
        self.drafts.end(&ending);
        self.open.truncate(which);
        prop_assert_eq!(self.drafts.check(id).map_err(|error| error.code()), Err(Code::TransactionClosed));
        prop_assert_eq!(self.drafts.plan_drop(id), None);
        Ok(())
    }

    pub fn check(&self) -> Done {
        self.drafts.check_invariants().map_err(TestCaseError::fail)?;
        prop_assert_eq!(self.planner.slots() as usize, self.slots.0.len());
        let everything = self.everything();
        prop_assert_eq!(self.slots.read(&self.planner.shown()), all(self.retained(&everything)));
        let kept = [&self.retained(&self.tokens)[..], &everything[self.tokens.len()..]].concat();
        prop_assert_eq!(self.slots.read(&self.planner.kept()), all(kept));
        for (depth, draft) in self.open.iter().enumerate() {
            prop_assert_eq!(self.drafts.len(draft.id)? as usize, draft.nodes.len());
            let innermost = depth + 1 == self.open.len();
            let checked = self.drafts.check(draft.id).map_err(|error| error.code());
            prop_assert_eq!(checked, if innermost { Ok(()) } else { Err(Code::TransactionOpen) });
        }
        prop_assert_eq!(self.drafts.is_branched(), self.open.iter().any(|draft| draft.branched));
        Ok(())
    }
}
