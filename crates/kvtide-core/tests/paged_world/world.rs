//! Both caches, and what a trace has open in them.

mod checking;
mod drafts;
mod prefixes;
mod steps;
mod tables;
mod writes;

use std::collections::BTreeMap;
use std::sync::Arc;

use kvtide_core::paged::{BlockKey, CheckedWrite, HeldContent, Identity, PagedPlanner, Window, WritePlan, WriteTarget};
use kvtide_core::{Code, Error, TransactionId};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::calls::{Call, Shape};
use super::memory::{Memory, Value};
use super::model::Sequence;
use tables::Tables;

type Done = Result<(), TestCaseError>;

/// An open step: its plan, what it brings, and which layers were written.
struct Step {
    plan: WritePlan,
    shares: Vec<(u64, Vec<u32>)>,
    known: bool,
    written: Vec<bool>,
    first: Value,
    /// Sequences that are in it no more: a transaction of theirs was dropped.
    left: Vec<u64>,
}

impl Step {
    fn is_stale(&self, sequences: &BTreeMap<u64, Sequence>) -> bool {
        !self.left.is_empty() || self.shares.iter().any(|(id, _)| !sequences.contains_key(id))
    }
}

pub struct World {
    shape: Shape,
    planner: PagedPlanner,
    memory: Memory,
    sequences: BTreeMap<u64, Sequence>,
    open: BTreeMap<u64, Vec<TransactionId>>,
    snapshots: Vec<(HeldContent, Sequence)>,
    step: Option<Step>,
    tables: Tables,
    /// The longest prompts that were committed, while nothing was taken back, rewritten or evicted.
    committed: Option<Vec<(u8, Vec<u32>)>>,
    now: u64,
    next: Value,
}

impl World {
    pub fn new(shape: Shape) -> Self {
        let planner = PagedPlanner::new(shape.capacity, shape.block_size, shape.layers).unwrap();
        let planner = if shape.low_bit { planner.staging_pages() } else { planner };
        let planner = match shape.window {
            Some((tokens, sinks)) => planner.sliding(Window::new(tokens, sinks).unwrap()),
            None => planner,
        };
        let planner = match shape.policy.make() {
            Some(policy) => planner.evicting(policy),
            None => planner,
        };
        World {
            shape,
            planner,
            memory: Memory::default(),
            sequences: BTreeMap::new(),
            open: BTreeMap::new(),
            snapshots: Vec::new(),
            step: None,
            tables: Tables::new(),
            committed: Some(Vec::new()),
            now: 0,
            next: 1,
        }
    }

    pub fn call(&mut self, call: &Call) -> Done {
        match call {
            Call::Create(salt) => {
                let id = self.planner.create_sequence_of(identity(*salt)).unwrap();
                self.sequences.insert(id, Sequence::new(*salt));
            }
            Call::Find(tokens, salt, partial, keep) => self.find(tokens, *salt, *partial, *keep)?,
            Call::Advance(by) => {
                self.now += by;
                self.planner.advance_clock(self.now);
            }
            Call::Forget => {
                self.planner.forget_prefixes();
                self.committed = None;
            }
            Call::Release(at) if !self.snapshots.is_empty() => {
                let (held, _) = self.snapshots.swap_remove(at % self.snapshots.len());
                self.planner.release(held);
            }
            Call::Release(_) => {}
            Call::Append(shares, known) => self.append(&self.shares(shares), *known)?,
            Call::OpenStep(shares, known) => self.open_step(self.shares(shares), *known)?,
            Call::WriteLayer(layer) => self.write_layer(layer % self.shape.layers)?,
            Call::EndStep(commit) => self.end_step(*commit)?,
            _ if self.sequences.is_empty() => {}
            _ => self.call_on_sequence(call)?,
        }
        Ok(())
    }

    fn restore(&mut self, id: u64, at: usize) -> Done {
        let restored = self.planner.restore(id, &self.snapshots[at].0);
        let is_idle = !self.is_stepping(id) && self.sequences[&id].drafts.is_empty();
        if is_idle && self.sequences[&id].salt != self.snapshots[at].1.salt {
            prop_assert_eq!(restored.map_err(|error| error.code()), Err(Code::SnapshotInvalid));
        } else if !self.refuses_change(id, &restored)? {
            self.sequences.insert(id, self.snapshots[at].1.clone());
            self.committed = None;
        }
        Ok(())
    }

    fn call_on_sequence(&mut self, call: &Call) -> Done {
        match *call {
            Call::Drop(of) => {
                let id = self.pick(of);
                self.planner.drop_sequence(id).unwrap();
                self.sequences.remove(&id);
                self.open.remove(&id);
            }
            Call::Fork(of) => {
                let id = self.pick(of);
                let forked = self.planner.fork(id);
                if self.refuses_step(id, &forked)? {
                    return Ok(());
                }
                let copy = self.sequences[&id].copied();
                self.sequences.insert(forked.unwrap(), copy);
                // What it shares gets keys when it goes on.
                self.committed = None;
            }
            Call::Ensure(of, tokens) => {
                let id = self.pick(of);
                if let Err(error) = self.planner.ensure_capacity(&[(id, tokens)]) {
                    prop_assert_eq!(error.code(), Code::OutOfBlocks);
                }
            }
            Call::Write(of, layer, position, tokens) => self.write(self.pick(of), layer, position, tokens)?,
            Call::Truncate(of, length) => self.truncate(self.pick(of), length)?,
            Call::Snapshot(of) => {
                let id = self.pick(of);
                let held = self.planner.snapshot(id);
                if !self.refuses_step(id, &held)? {
                    let copy = self.sequences[&id].copied();
                    self.snapshots.push((held.unwrap(), copy));
                    if self.shape.low_bit && !self.sequences[&id].drafts.is_empty() {
                        // What a snapshot holds too is not quantised when it is committed, and so not found.
                        self.committed = None;
                    }
                }
            }
            Call::Restore(of, at) if !self.snapshots.is_empty() => {
                self.restore(self.pick(of), at % self.snapshots.len())?;
            }
            Call::Begin(of) => {
                let id = self.pick(of);
                let ids = self.open.entry(id).or_default();
                let begun = self.planner.begin(id, ids.last().copied());
                if let Ok(begun) = &begun {
                    ids.push(*begun);
                    let of = self.sequences.get_mut(&id).unwrap();
                    of.drafts.push((of.values.len(), Vec::new()));
                }
                self.refuses_step(id, &begun)?;
            }
            Call::DraftAppend(of, ref tokens, ref parents) => {
                self.draft_append(self.pick(of), tokens, parents.as_deref())?;
            }
            Call::Commit(of, tokens) => self.commit(self.pick(of), tokens)?,
            Call::CommitPath(of, ref path) => self.commit_path(self.pick(of), path)?,
            Call::Undo(of, depth) => self.undo(self.pick(of), depth)?,
            Call::Retain(of, from, len, priority, until) => {
                self.planner.retain(self.pick(of), from..from + len, priority, until).unwrap();
            }
            _ => {}
        }
        Ok(())
    }

    fn pick(&self, of: usize) -> u64 {
        *self.sequences.keys().nth(of % self.sequences.len()).unwrap()
    }

    fn shares(&self, shares: &[(usize, Vec<u32>)]) -> Vec<(u64, Vec<u32>)> {
        let mut picked: Vec<(u64, Vec<u32>)> = Vec::new();
        for (of, tokens) in shares.iter().filter(|_| !self.sequences.is_empty()) {
            let id = self.pick(*of);
            if picked.iter().all(|(other, _)| *other != id) {
                picked.push((id, tokens.clone()));
            }
        }
        picked
    }

    fn is_stepping(&self, id: u64) -> bool {
        self.step.as_ref().is_some_and(|step| step.shares.iter().any(|(of, _)| *of == id) && !step.left.contains(&id))
    }

    /// Whether a call was refused because of an open step, which must be the reason where there is one.
    fn refuses_step<T>(&self, id: u64, result: &Result<T, Error>) -> Result<bool, TestCaseError> {
        let expected = self.is_stepping(id).then_some(Code::TransactionOpen);
        prop_assert_eq!(result.as_ref().err().map(Error::code), expected);
        Ok(expected.is_some())
    }

    /// The same for an open step or transaction.
    fn refuses_change<T>(&self, id: u64, result: &Result<T, Error>) -> Result<bool, TestCaseError> {
        let open = self.is_stepping(id) || !self.sequences[&id].drafts.is_empty();
        prop_assert_eq!(result.as_ref().err().map(Error::code), open.then_some(Code::TransactionOpen));
        Ok(open)
    }

    /// Where an append puts its tokens: behind those that each sequence has.
    fn targets(&self, shares: &[(u64, Vec<u32>)]) -> Vec<WriteTarget> {
        let target = |(id, tokens): &(u64, Vec<u32>)| WriteTarget {
            sequence: *id,
            position: self.planner.sequence_length(*id),
            tokens: tokens.len() as u32,
        };
        shares.iter().map(target).collect()
    }

    /// A write and the copies before it are the same planned in one go and apart, and refused alike.
    fn check_one_go(
        &self,
        write: Result<CheckedWrite, Error>,
        targets: &[WriteTarget],
        plan: Result<WritePlan, Error>,
    ) -> Done {
        let apart = self.planner.plan_copies(targets).and_then(|copies| Ok((copies, plan?)));
        prop_assert_eq!(write.and_then(|write| self.planner.plan_write(write)), apart);
        Ok(())
    }

    /// Makes the copies that writes need; false when they are refused.
    fn copy(&mut self, targets: &[WriteTarget]) -> Result<bool, TestCaseError> {
        let plan = match self.planner.plan_copies(targets) {
            Ok(plan) => plan,
            Err(Error::OutOfBlocks { needed, free }) => {
                prop_assert!(needed > free);
                return Ok(false);
            }
            Err(error) => return Err(TestCaseError::fail(format!("{error}"))),
        };
        for copy in plan.copies() {
            self.memory.copy(&self.planner, copy);
        }
        self.planner.commit_copies(&plan).unwrap();
        Ok(true)
    }
}

fn identity(salt: u8) -> Identity {
    Identity { root: BlockKey::root(&[7; 32], b"model", &[salt]), extra: Arc::default() }
}

fn flat(shares: &[(u64, Vec<u32>)]) -> (Vec<u64>, Vec<u32>, Vec<u32>) {
    let (mut offsets, mut tokens) = (vec![0], Vec::new());
    for (_, of_share) in shares {
        tokens.extend(of_share);
        offsets.push(tokens.len() as u32);
    }
    (shares.iter().map(|share| share.0).collect(), offsets, tokens)
}
