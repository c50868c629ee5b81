//! Both caches, and what a trace has open in them.

mod attending;
mod checking;
mod drafts;
mod prefixes;
mod steps;
mod writes;

use std::collections::BTreeMap;
use std::sync::Arc;

use kvtide_core::paged::Window;
use kvtide_core::{Code, TransactionId};
use kvtide_tensor::{
    BeginOptions, Error, HostTensor, PagedKvCache, PagedKvCacheOptions, PagedSnapshot, PagedStep, Transactional,
};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::calls::{Call, Shape};
use super::content::Content;
use super::memory::Value;
use super::model::Sequence;
use crate::outcome::{Done, code};

/// An open step: what it brings, and which layers were written.
struct Step {
    open: PagedStep,
    shares: Vec<(u64, Vec<u32>)>,
    known: bool,
    written: Vec<bool>,
    first: Value,
    /// Sequences that are in it no more: a transaction of theirs was dropped.
    left: Vec<u64>,
}

pub struct World {
    pub shape: Shape,
    pub content: Content,
    pub cache: PagedKvCache,
    pub sequences: BTreeMap<u64, Sequence>,
    open: BTreeMap<u64, Vec<TransactionId>>,
    snapshots: Vec<(PagedSnapshot, Sequence)>,
    step: Option<Step>,
    /// The longest prompts that were committed, while nothing was taken back, rewritten or evicted.
    committed: Option<Vec<(u8, Vec<u32>)>>,
    now: u64,
    next: Value,
    /// Calls that may have opened a page that was full.
    opened: u32,
}

/// K and V of some layers, as they are handed over.
pub struct Fed {
    content: Content,
    bytes: [Vec<u8>; 2],
    shapes: [Vec<usize>; 2],
}

impl Fed {
    pub fn host(&self, part: usize) -> HostTensor<'_> {
        HostTensor::new("k", &self.bytes[part], self.content.dtype, &self.shapes[part]).expect("as many bytes")
    }
}

impl World {
    pub fn new(shape: Shape, content: Content) -> Result<Self, TestCaseError> {
        let window = shape.window.map(|(tokens, sinks)| Window::new(tokens, sinks).expect("a window"));
        let cache = PagedKvCache::new(PagedKvCacheOptions {
            capacity: shape.capacity,
            block_size: shape.block_size,
            num_layers: shape.layers,
            window,
            eviction: shape.policy.make().map(Arc::from),
            ..content.options()
        })?;
        Ok(World {
            shape,
            content,
            cache,
            sequences: BTreeMap::new(),
            open: BTreeMap::new(),
            snapshots: Vec::new(),
            step: None,
            committed: Some(Vec::new()),
            now: 0,
            next: 1,
            opened: 0,
        })
    }

    pub fn call(&mut self, call: &Call) -> Done {
        match call {
            Call::Create(salt) => {
                let id = self.cache.create_sequence_of(kvtide_tensor::PromptOptions { salt: &[*salt], extra: &[] })?;
                self.sequences.insert(id, Sequence::new(*salt));
            }
            Call::Find(tokens, salt, partial, keep) => self.find(tokens, *salt, *partial, *keep)?,
            Call::Advance(by) => {
                self.now += by;
                self.cache.advance_clock(self.now)?;
            }
            Call::Forget => {
                self.cache.forget_prefixes()?;
                self.committed = None;
            }
            Call::Release(at) if !self.snapshots.is_empty() => {
                self.snapshots.swap_remove(at % self.snapshots.len());
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
                self.cache.drop_sequence(id)?;
                prop_assert_eq!(code(self.cache.gather(id, 0)), Err(Code::SequenceNotFound));
                self.sequences.remove(&id);
                self.open.remove(&id);
            }
            Call::Fork(of) => {
                let id = self.pick(of);
                let forked = self.cache.fork(id);
                if self.refuses_step(id, &forked)? {
                    return Ok(());
                }
                let copy = self.sequences[&id].copied();
                self.sequences.insert(forked?, copy);
                // What it shares gets keys when it goes on.
                self.committed = None;
            }
            Call::Ensure(of, tokens) => {
                if let Err(error) = self.cache.ensure_capacity(self.pick(of), tokens) {
                    prop_assert_eq!(error.code(), Code::OutOfBlocks);
                }
            }
            Call::Write(of, layer, position, tokens) => self.write(self.pick(of), layer, position, tokens)?,
            Call::Truncate(of, length) => self.truncate(self.pick(of), length)?,
            Call::Snapshot(of) => {
                let id = self.pick(of);
                let held = self.cache.snapshot(id);
                if !self.refuses_step(id, &held)? {
                    let copy = self.sequences[&id].copied();
                    self.snapshots.push((held?, copy));
                    if self.content.formats != [None; 2] && !self.sequences[&id].drafts.is_empty() {
                        // What a snapshot holds too is not quantised when it is committed, and so not found.
                        self.committed = None;
                    }
                }
            }
            Call::Restore(of, at) if !self.snapshots.is_empty() => {
                let (id, at) = (self.pick(of), at % self.snapshots.len());
                let restored = self.cache.restore(id, &self.snapshots[at].0);
                let is_idle = !self.is_stepping(id) && self.sequences[&id].drafts.is_empty();
                if is_idle && self.sequences[&id].salt != self.snapshots[at].1.salt {
                    prop_assert_eq!(restored.map_err(|error| error.code()), Err(Code::SnapshotInvalid));
                } else if !self.refuses_change(id, &restored)? {
                    self.sequences.insert(id, self.snapshots[at].1.clone());
                    self.committed = None;
                }
            }
            Call::Begin(of) => self.begin(self.pick(of))?,
            Call::DraftAppend(of, ref tokens, ref parents) => {
                self.draft_append(self.pick(of), tokens, parents.as_deref())?;
            }
            Call::Commit(of, tokens) => self.commit(self.pick(of), tokens)?,
            Call::CommitPath(of, ref path) => self.commit_path(self.pick(of), path)?,
            Call::Undo(of, depth) => self.undo(self.pick(of), depth)?,
            Call::Retain(of, from, len, priority, until) => {
                self.cache.retain(self.pick(of), from..from + len, priority, until)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn begin(&mut self, id: u64) -> Done {
        let parent = self.open.get(&id).and_then(|ids| ids.last()).copied();
        // Sometimes with room, which there may not be.
        let max_tokens = (id + self.sequences[&id].values.len() as u64).is_multiple_of(3).then_some(5);
        let begun = self.cache.sequence(id)?.begin_draft(parent, BeginOptions { max_tokens });
        if ran_out(&begun)? {
            prop_assert!(max_tokens.is_some());
            return Ok(());
        }
        if !self.refuses_step(id, &begun)? {
            self.open.entry(id).or_default().push(begun?);
            let of = self.sequences.get_mut(&id).expect("a sequence of the model");
            of.drafts.push((of.values.len(), Vec::new()));
        }
        Ok(())
    }

    fn pick(&self, of: usize) -> u64 {
        *self.sequences.keys().nth(of % self.sequences.len()).expect("one of them")
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

    /// K and V of the values `tokens[token][layer]` in all layers.
    fn fed_all(&self, tokens: &[Vec<Value>]) -> Fed {
        let of_layer = |layer: usize| tokens.iter().map(|token| token[layer]).collect();
        self.fed(&(0..self.shape.layers as usize).map(of_layer).collect::<Vec<_>>(), true)
    }

    /// K and V of values layer by layer.
    fn fed(&self, layers: &[Vec<Value>], outer: bool) -> Fed {
        let Content { heads, dims, .. } = self.content;
        let shape = |dim: usize| {
            let all = [layers.len(), heads, layers[0].len(), dim];
            if outer { all.to_vec() } else { all[1..].to_vec() }
        };
        Fed { content: self.content, bytes: [0, 1].map(|part| self.content.fed(part, layers)), shapes: dims.map(shape) }
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
}

/// Whether a call was refused because blocks ran out: more than there were.
fn ran_out<T>(result: &Result<T, Error>) -> Result<bool, TestCaseError> {
    match result {
        Err(Error::Plan(kvtide_core::Error::OutOfBlocks { needed, free })) => {
            prop_assert!(needed > free);
            Ok(true)
        }
        _ => Ok(false),
    }
}

fn flat(shares: &[(u64, Vec<u32>)]) -> (Vec<u64>, Vec<u32>, Vec<u32>) {
    let (mut offsets, mut tokens) = (vec![0], Vec::new());
    for (_, of_share) in shares {
        tokens.extend(of_share);
        offsets.push(tokens.len() as u32);
    }
    (shares.iter().map(|share| share.0).collect(), offsets, tokens)
}
