//! A cache next to sequences that are stored separately.

use std::collections::BTreeMap;
use std::ops::Range;

use kvtide_core::model::{LayerKind, ModelDescription};
use kvtide_core::{Code, TransactionId};
use kvtide_tensor::{BeginOptions, Error, PagedKvCache, PagedSnapshot};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use crate::ledger::Ledger;
use crate::model::{Id, Sequence, rows, source};
use crate::random::Call;
use crate::subject::{Blocks, cache, code};

type Done = Result<(), TestCaseError>;

pub struct World {
    pub(crate) kind: Blocks,
    pub(crate) cache: PagedKvCache,
    pub(crate) sequences: BTreeMap<u64, Sequence>,
    pub(crate) open: BTreeMap<u64, Vec<TransactionId>>,
    pub(crate) snapshots: Vec<(PagedSnapshot, Sequence)>,
    pub(crate) ledger: Ledger,
    pub(crate) next: Id,
}

impl World {
    pub fn new(model: ModelDescription, kind: Blocks) -> Result<Self, TestCaseError> {
        let (sequences, open) = (BTreeMap::new(), BTreeMap::new());
        let (snapshots, ledger) = (Vec::new(), Ledger::default());
        Ok(World { kind, cache: cache(model, kind), sequences, open, snapshots, ledger, next: 1 })
    }

    pub fn call(&mut self, call: &Call) -> Done {
        if let Call::Create = call {
            let id = self.cache.create_sequence()?;
            prop_assert!(self.sequences.keys().all(|other| *other < id));
            self.sequences.insert(id, Sequence::default());
        }
        if self.sequences.is_empty() {
            return Ok(());
        }
        match *call {
            Call::Create => {}
            Call::Drop(of) => {
                let id = self.pick(of);
                self.drop_sequence(id)?;
            }
            Call::Fork(of) => {
                let copy = self.sequences[&self.pick(of)].copied();
                let id = self.cache.fork(self.pick(of))?;
                self.sequences.insert(id, copy);
            }
            Call::Truncate(of, length) => self.truncate(self.pick(of), length)?,
            Call::Snapshot(of) => {
                let id = self.pick(of);
                self.snapshots.push((self.cache.snapshot(id)?, self.sequences[&id].copied()));
            }
            Call::Restore(of, at) if !self.snapshots.is_empty() => {
                let (id, at) = (self.pick(of), at % self.snapshots.len());
                let done = self.cache.restore(id, &self.snapshots[at].0);
                if self.is_idle(id, &done)? {
                    self.sequences.insert(id, self.snapshots[at].1.clone());
                }
            }
            Call::Release(at) if !self.snapshots.is_empty() => {
                self.snapshots.swap_remove(at % self.snapshots.len());
            }
            Call::Restore(..) | Call::Release(_) => {}
            Call::Keep(of, layer) => self.keep(self.pick(of), layer)?,
            Call::LetGo(of) => self.ledger.let_go(of),
            Call::Begin(of, max_tokens) => {
                let id = self.pick(of);
                let begun = match self.cache.begin(id, self.innermost(id), BeginOptions { max_tokens }) {
                    Err(error) if error.code() == Code::OutOfBlocks && max_tokens.is_some() => return Ok(()),
                    begun => begun?,
                };
                self.open.entry(id).or_default().push(begun);
                let of = self.sequences.get_mut(&id).expect("a sequence of the model");
                of.drafts.push((of.tokens.len(), Vec::new()));
            }
            Call::Step(of, tokens, ref tree, layers, end) => {
                self.step(self.pick(of), tokens, tree.as_deref(), layers, end)?;
            }
            Call::Commit(of, tokens) => self.commit(self.pick(of), tokens)?,
            Call::Path(of, ref choices) => self.commit_path(self.pick(of), choices)?,
            Call::Rollback(of, depth) => {
                let id = self.pick(of);
                let Some(ids) = self.open.get_mut(&id).filter(|ids| !ids.is_empty()) else { return Ok(()) };
                let depth = depth % ids.len();
                self.cache.rollback(id, ids[depth]);
                ids.truncate(depth);
                let of = self.sequences.get_mut(&id).expect("a sequence of the model");
                of.tokens.truncate(of.drafts[depth].0);
                of.drafts.truncate(depth);
            }
        }
        Ok(())
    }

    fn pick(&self, of: usize) -> u64 {
        *self.sequences.keys().nth(of % self.sequences.len()).expect("one of them")
    }

    pub(crate) fn innermost(&self, id: u64) -> Option<TransactionId> {
        self.open.get(&id).and_then(|ids| ids.last()).copied()
    }

    /// True if a change of a sequence succeeded; only an open transaction may refuse it.
    fn is_idle<T>(&self, id: u64, done: &Result<T, Error>) -> Result<bool, TestCaseError> {
        let open = !self.sequences[&id].drafts.is_empty();
        prop_assert_eq!(done.as_ref().err().map(Error::code), open.then_some(Code::TransactionOpen));
        Ok(!open)
    }

    fn truncate(&mut self, id: u64, length: u32) -> Done {
        let before = self.sequences[&id].tokens.len();
        let done = self.cache.truncate(id, length);
        // Blocks keep what tokens to come see, which is one less than the window.
        let slides = self.cache.model().groups().iter().any(|group| match group.kind {
            LayerKind::Sliding { window, sinks } => before + 1 > (window + sinks) as usize,
            _ => false,
        });
        let beyond = length as usize > before;
        if done.as_ref().err().map(Error::code) == Some(Code::CannotRollBack) {
            prop_assert!(self.sequences[&id].drafts.is_empty());
            prop_assert!(beyond || (slides && (length as usize) < before));
            return Ok(());
        }
        if self.is_idle(id, &done)? {
            prop_assert!(!beyond);
            self.sequences.get_mut(&id).expect("a sequence of the model").tokens.truncate(length as usize);
        }
        Ok(())
    }

    pub(crate) fn drop_sequence(&mut self, id: u64) -> Done {
        self.cache.drop_sequence(id)?;
        prop_assert_eq!(code(self.cache.kv(id, 0)), Err(Code::SequenceNotFound));
        self.sequences.remove(&id);
        self.open.remove(&id);
        Ok(())
    }

    fn commit(&mut self, id: u64, tokens: Option<u64>) -> Done {
        let Some(transaction) = self.innermost(id) else { return Ok(()) };
        let done = code(self.cache.commit(id, transaction, tokens));
        let of = self.sequences.get_mut(&id).expect("a sequence of the model");
        let (base, nodes) = of.drafts.last().cloned().expect("an open transaction");
        let kept = tokens.map_or(nodes.len(), |tokens| tokens as usize);
        if kept > nodes.len() {
            prop_assert_eq!(done, Err(Code::InvalidArgument));
            return Ok(());
        }
        prop_assert_eq!(done, Ok(()));
        let ids = of.tokens[base..base + kept].to_vec();
        of.end(&ids, &nodes[..kept]);
        self.open.get_mut(&id).expect("open transactions").pop();
        Ok(())
    }

    fn commit_path(&mut self, id: u64, choices: &[u32]) -> Done {
        let Some(transaction) = self.innermost(id) else { return Ok(()) };
        let of = self.sequences.get_mut(&id).expect("a sequence of the model");
        let (base, nodes) = of.drafts.last().cloned().expect("an open transaction");
        let (mut path, mut at) = (Vec::new(), -1);
        for &choice in choices {
            let children: Vec<usize> = (0..nodes.len()).filter(|&node| nodes[node] == at).collect();
            let Some(place) = (choice as usize).checked_rem(children.len()) else { break };
            path.push(children[place] as u32);
            at = children[place] as i32;
        }
        let done = self.cache.commit_path(id, transaction, &path);
        if done.as_ref().is_err_and(|error| error.code() == Code::OutOfBlocks) {
            let held = !self.snapshots.is_empty() || self.sequences.len() > 1;
            prop_assert!(held);
            return Ok(());
        }
        done?;
        let ids: Vec<Id> = path.iter().map(|&node| of.tokens[base + node as usize]).collect();
        of.end(&ids, &(0..path.len() as i32).map(|at| at - 1).collect::<Vec<_>>());
        self.open.get_mut(&id).expect("open transactions").pop();
        Ok(())
    }

    pub fn check(&mut self) -> Done {
        self.cache.check_invariants().map_err(TestCaseError::fail)?;
        prop_assert_eq!(self.cache.sequence_ids(), self.sequences.keys().copied().collect::<Vec<_>>());
        for (id, of) in self.sequences.clone() {
            prop_assert_eq!(self.cache.sequence_length(id) as usize, of.tokens.len());
            prop_assert_eq!(self.cache.committed_length(id) as usize, of.committed());
            for (transaction, (_, nodes)) in self.open.get(&id).into_iter().flatten().zip(&of.drafts) {
                prop_assert_eq!(self.cache.drafted(id, *transaction)? as usize, nodes.len());
            }
            for layer in 0..self.cache.model().layers().len() as u32 {
                self.check_layer(id, &of, layer)?;
                self.attend_to_kv(id, &of, layer)?;
            }
        }
        self.check_masks()?;
        self.check_bytes()
    }

    fn check_layer(&mut self, id: u64, of: &Sequence, layer: u32) -> Done {
        let own = source(self.cache.model(), layer);
        let description = self.cache.model().layers()[own as usize];
        let kv = self.cache.kv(id, layer)?;
        let gap = self.gap(of, kv.k.shape()[2], description.kind)?;
        let kept: Vec<Id> = (0..of.tokens.len()).filter(|at| !gap.contains(at)).map(|at| of.tokens[at]).collect();
        for (part, view) in [(0, &kv.k), (1, &kv.v)] {
            let dims = [1, description.num_kv_heads as usize, kept.len(), description.head_dim as usize];
            prop_assert_eq!(view.shape(), &dims[..]);
            prop_assert_eq!(view.to_f32()?, rows(&description, own, part, &kept), "layer {} of {}", layer, id);
        }
        Ok(())
    }

    /// The positions that left a window: whole blocks that no token to come sees.
    pub(crate) fn gap(&self, of: &Sequence, kept: usize, kind: LayerKind) -> Result<Range<usize>, TestCaseError> {
        let all = of.tokens.len();
        let LayerKind::Sliding { window, sinks } = kind else {
            prop_assert_eq!(kept, all);
            return Ok(0..0);
        };
        let (window, sinks) = (window as usize, sinks as usize);
        if kept == all {
            return Ok(0..0);
        }
        let start = sinks.next_multiple_of(self.kind.0 as usize);
        let gap = start..start + all - kept;
        prop_assert!(gap.end + window <= of.committed().max(of.tokens.len()) + 1);
        Ok(gap)
    }

    /// After everything is dropped, all blocks are free.
    pub fn end(mut self) -> Done {
        for id in std::mem::take(&mut self.sequences).into_keys() {
            self.cache.drop_sequence(id)?;
        }
        self.snapshots.clear();
        self.ledger.views.clear();
        for of in self.cache.pools()? {
            prop_assert_eq!((of.active, of.free), (0, of.total));
        }
        self.check()
    }
}
