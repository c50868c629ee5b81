//! The oracle of paged sequences: a model that stores every sequence separately, next to a cache that must show the
//! same.
//!
//! ```text
//! trace of calls -> World -> Cache     compares the results, and the content after each call, with the model
//! ```
//!
//! It serves everything that keeps sequences in pages: the planner with a simulated memory, and caches on tensors. Each
//! is a [`Cache`] that takes values and shows them; only the cache knows how its memory represents a value.

mod cache;
mod checks;
mod drafts;
mod prefixes;
mod steps;
mod writes;

use std::collections::BTreeMap;

use kvtide_core::{Code, TransactionId};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

pub use cache::{Answer, Cache, Seen, SeenStep};

use super::calls::{Call, Shape};
use super::model::{Sequence, Value};

pub type Done = Result<(), TestCaseError>;

/// A sequence, and the tokens that it gets.
pub type Share = (u64, Vec<u32>);

/// An open step: what it brings, and which layers were written.
pub struct Step<S> {
    pub open: S,
    pub shares: Vec<Share>,
    known: bool,
    pub written: Vec<bool>,
    first: Value,
    /// Sequences that are in it no more: a transaction of theirs was dropped.
    left: Vec<u64>,
}

pub struct World<C: Cache> {
    pub shape: Shape,
    pub cache: C,
    pub sequences: BTreeMap<u64, Sequence>,
    open: BTreeMap<u64, Vec<TransactionId>>,
    snapshots: Vec<(C::Hold, Sequence)>,
    pub step: Option<Step<C::Step>>,
    /// The longest prompts that were committed, while nothing was taken back, rewritten or evicted.
    committed: Option<Vec<(u8, Vec<u32>)>>,
    now: u64,
    next: Value,
}

impl<C: Cache> World<C> {
    /// A cache of this shape, in which nothing is yet.
    pub fn new(shape: Shape, cache: C) -> Self {
        World {
            shape,
            cache,
            sequences: BTreeMap::new(),
            open: BTreeMap::new(),
            snapshots: Vec::new(),
            step: None,
            committed: Some(Vec::new()),
            now: 0,
            next: 1,
        }
    }

    pub fn call(&mut self, call: &Call) -> Done {
        match call {
            Call::Create(salt) => {
                let id = self.cache.create(*salt);
                self.sequences.insert(id, Sequence::new(*salt));
            }
            Call::Find(tokens, salt, partial, keep) => self.find(tokens, *salt, *partial, *keep)?,
            Call::Advance(by) => {
                self.now += by;
                self.cache.advance(self.now);
            }
            Call::Forget => {
                self.cache.forget();
                self.committed = None;
            }
            Call::Release(at) if !self.snapshots.is_empty() => {
                let (held, _) = self.snapshots.swap_remove(at % self.snapshots.len());
                self.cache.release(held);
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

    fn call_on_sequence(&mut self, call: &Call) -> Done {
        match *call {
            Call::Drop(of) => {
                let id = self.pick(of);
                prop_assert_eq!(self.cache.drop_sequence(id), Ok(()));
                prop_assert_eq!(self.cache.drop_sequence(id), Err(Code::SequenceNotFound));
                self.sequences.remove(&id);
                self.open.remove(&id);
            }
            Call::Fork(of) => {
                let id = self.pick(of);
                // Also in the middle of a step, whose tokens are not in it.
                let fork = self.cache.fork(id).map_err(|code| TestCaseError::fail(format!("no fork: {code:?}")))?;
                let copy = self.sequences[&id].copied();
                self.sequences.insert(fork, copy);
                // What it shares gets keys when it goes on.
                self.committed = None;
            }
            Call::Ensure(of, tokens) => {
                let done = self.cache.ensure(self.pick(of), tokens);
                prop_assert!(matches!(done, Ok(()) | Err(Code::OutOfBlocks)));
            }
            Call::Write(of, layer, position, tokens) => self.write(self.pick(of), layer, position, tokens)?,
            Call::Truncate(of, length) => self.truncate(self.pick(of), length)?,
            Call::Snapshot(of) => self.snapshot(self.pick(of))?,
            Call::Restore(of, at) if !self.snapshots.is_empty() => {
                self.restore(self.pick(of), at % self.snapshots.len())?;
            }
            Call::Identify(of, tokens) => self.identify(self.pick(of), tokens)?,
            Call::Begin(of) => self.begin(self.pick(of))?,
            Call::DraftAppend(of, ref tokens, ref parents) => {
                self.draft_append(self.pick(of), tokens, parents.as_deref())?;
            }
            Call::Commit(of, tokens) => self.commit(self.pick(of), tokens)?,
            Call::CommitPath(of, ref path) => self.commit_path(self.pick(of), path)?,
            Call::Undo(of, depth) => self.undo(self.pick(of), depth),
            Call::Retain(of, from, len, priority, until) => {
                self.cache.retain(self.pick(of), from..from + len, priority, until);
            }
            _ => {}
        }
        Ok(())
    }

    fn snapshot(&mut self, id: u64) -> Done {
        // Also in the middle of a step, whose tokens are not in it.
        let held = self.cache.snapshot(id).map_err(|code| TestCaseError::fail(format!("no snapshot: {code:?}")))?;
        self.snapshots.push((held, self.sequences[&id].copied()));
        if self.shape.low_bit && (self.is_stepping(id) || !self.sequences[&id].drafts.is_empty()) {
            // What a snapshot holds too is not quantised when it is committed, and so not found.
            self.committed = None;
        }
        Ok(())
    }

    fn restore(&mut self, id: u64, at: usize) -> Done {
        let restored = self.cache.restore(id, &self.snapshots[at].0);
        let is_idle = !self.is_stepping(id) && self.sequences[&id].drafts.is_empty();
        if is_idle && self.sequences[&id].salt != self.snapshots[at].1.salt {
            prop_assert_eq!(restored, Err(Code::SnapshotInvalid));
        } else if !self.refuses_change(id, &restored)? {
            self.sequences.insert(id, self.snapshots[at].1.clone());
            self.committed = None;
        }
        Ok(())
    }

    fn pick(&self, of: usize) -> u64 {
        *self.sequences.keys().nth(of % self.sequences.len()).expect("one of them")
    }

    fn sequence(&mut self, id: u64) -> &mut Sequence {
        self.sequences.get_mut(&id).expect("a sequence of the model")
    }

    fn shares(&self, shares: &[(usize, Vec<u32>)]) -> Vec<Share> {
        let mut picked: Vec<Share> = Vec::new();
        for (of, tokens) in shares.iter().filter(|_| !self.sequences.is_empty()) {
            let id = self.pick(*of);
            if picked.iter().all(|(other, _)| *other != id) {
                picked.push((id, tokens.clone()));
            }
        }
        picked
    }

    pub fn is_stepping(&self, id: u64) -> bool {
        self.step.as_ref().is_some_and(|step| step.shares.iter().any(|(of, _)| *of == id) && !step.left.contains(&id))
    }

    /// Checks that a call was refused exactly if a step is open, with that reason. Returns true if it was refused.
    fn refuses_step<T>(&self, id: u64, answer: &Answer<T>) -> Result<bool, TestCaseError> {
        let expected = self.is_stepping(id).then_some(Code::TransactionOpen);
        prop_assert_eq!(answer.as_ref().err().copied(), expected);
        Ok(expected.is_some())
    }

    /// The same for an open step or transaction.
    fn refuses_change<T>(&self, id: u64, answer: &Answer<T>) -> Result<bool, TestCaseError> {
        let open = self.is_stepping(id) || !self.sequences[&id].drafts.is_empty();
        prop_assert_eq!(answer.as_ref().err().copied(), open.then_some(Code::TransactionOpen));
        Ok(open)
    }
}
