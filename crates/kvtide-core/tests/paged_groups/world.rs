//! Groups in lockstep: every sequence is in each of them, with the same id.

mod changes;
mod checking;
mod finding;

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;

use kvtide_core::TransactionId;
use kvtide_core::paged::{BlockKey, Extras, HeldContent, Identity, PagedPlanner, Window};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::memory::{Memory, Value};

type Done = Result<(), TestCaseError>;

/// The windows of the groups, as tokens and sinks.
#[derive(Clone, Debug)]
pub struct Shape {
    pub capacity: u32,
    pub block_size: u32,
    pub groups: Vec<Option<(u32, u32)>>,
}

#[derive(Clone, Debug)]
pub enum Call {
    Create(u8),
    Drop(usize),
    Fork(usize),
    /// Tokens, and whether their ids are told.
    Append(usize, Vec<u32>, bool),
    /// So many tokens less, and these instead.
    Rewrite(usize, u32, Vec<u32>),
    Truncate(usize, u32),
    Snapshot(usize),
    Restore(usize, usize),
    Release(usize),
    Begin(usize),
    /// Ends a transaction and keeps this many tokens; without a number, it is rolled back.
    End(usize, Option<usize>),
    Find(Vec<u32>, u8, bool, bool),
    Forget(usize),
}

struct Group {
    planner: PagedPlanner,
    memory: Memory,
    window: Option<(u32, u32)>,
    /// Keys of the blocks that can be found, by its events.
    keys: HashSet<BlockKey>,
    seen: u64,
    /// Every whole block that was committed since everything was forgotten, by all tokens up to its end.
    computed: HashMap<(u8, Vec<u32>), BlockKey>,
    /// True if nothing was evicted or overwritten in place.
    is_exact: bool,
    /// Keys that nothing is found by any more, and blocks that may have been written over where they lay.
    removed: u64,
    overwritten: u64,
}

#[derive(Clone, Debug)]
struct Sequence {
    salt: u8,
    tokens: Vec<u32>,
    /// In each group, leading tokens whose ids are known.
    known: Vec<usize>,
    /// The starts of its open transactions.
    drafts: Vec<usize>,
}

impl Sequence {
    fn committed(&self) -> usize {
        self.drafts.first().copied().unwrap_or(self.tokens.len())
    }

    /// Leading tokens that prompts may find in a group.
    fn named(&self, group: usize) -> usize {
        self.known[group].min(self.committed())
    }

    fn truncate(&mut self, length: usize) {
        self.tokens.truncate(length);
        self.known.iter_mut().for_each(|known| *known = (*known).min(length));
    }

    /// The same tokens, all of them committed; the ids of those that were only tried are of no prompt.
    fn copied(&self) -> Sequence {
        let known = (0..self.known.len()).map(|group| self.named(group)).collect();
        Sequence { known, drafts: Vec::new(), ..self.clone() }
    }
}

struct Snapshot {
    held: Vec<HeldContent>,
    gaps: Vec<Range<u32>>,
    sequence: Sequence,
}

pub struct World {
    block_size: usize,
    groups: Vec<Group>,
    sequences: BTreeMap<u64, Sequence>,
    /// Open transactions, each with its number in every group.
    open: BTreeMap<u64, Vec<Vec<TransactionId>>>,
    snapshots: Vec<Snapshot>,
}

impl World {
    pub fn new(shape: &Shape) -> Self {
        let group = |&window: &Option<(u32, u32)>| {
            let mut planner = PagedPlanner::new(shape.capacity, shape.block_size, 1).unwrap();
            if let Some((tokens, sinks)) = window {
                planner = planner.sliding(Window::new(tokens, sinks).unwrap());
            }
            planner.keep_events(1 << 20);
            let (keys, computed) = (HashSet::new(), HashMap::new());
            Group {
                planner,
                memory: Memory::default(),
                window,
                keys,
                seen: 0,
                computed,
                is_exact: true,
                removed: 0,
                overwritten: 0,
            }
        };
        World {
            block_size: shape.block_size as usize,
            groups: shape.groups.iter().map(group).collect(),
            sequences: BTreeMap::new(),
            open: BTreeMap::new(),
            snapshots: Vec::new(),
        }
    }

    pub fn call(&mut self, call: &Call) -> Done {
        match call {
            Call::Create(salt) => {
                let ids: Vec<u64> =
                    self.groups.iter_mut().map(|of| of.planner.create_sequence_of(identity(*salt)).unwrap()).collect();
                let known = vec![0; self.groups.len()];
                self.add(&ids, Sequence { salt: *salt, tokens: Vec::new(), known, drafts: Vec::new() })?;
            }
            Call::Find(tokens, salt, partial, keep) => self.find(tokens, *salt, *partial, *keep)?,
            Call::Forget(group) => self.forget(group % self.groups.len()),
            Call::Release(at) if !self.snapshots.is_empty() => {
                let snapshot = self.snapshots.swap_remove(at % self.snapshots.len());
                self.groups.iter_mut().zip(snapshot.held).for_each(|(of, held)| of.planner.release(held));
            }
            _ if self.sequences.is_empty() => {}
            Call::Drop(of) => {
                let id = self.pick(*of);
                self.groups.iter_mut().for_each(|of| of.planner.drop_sequence(id).unwrap());
                self.sequences.remove(&id);
                self.open.remove(&id);
            }
            Call::Fork(of) => {
                let id = self.pick(*of);
                let ids: Vec<u64> = self.groups.iter_mut().map(|of| of.planner.fork(id).unwrap()).collect();
                let copy = self.sequences[&id].copied();
                self.add(&ids, copy)?;
            }
            Call::Append(of, tokens, known) => self.append(self.pick(*of), tokens, *known)?,
            Call::Rewrite(of, fewer, tokens) => {
                let id = self.pick(*of);
                let length = self.sequences[&id].tokens.len() as u32;
                self.truncate(id, length.saturating_sub(*fewer))?;
                self.append(id, tokens, true)?;
            }
            Call::Truncate(of, length) => self.truncate(self.pick(*of), *length)?,
            Call::Snapshot(of) => self.snapshot(self.pick(*of)),
            Call::Restore(of, at) => self.restore(self.pick(*of), *at),
            Call::Begin(of) => self.begin(self.pick(*of)),
            Call::End(of, kept) => self.end_draft(self.pick(*of), *kept),
            Call::Release(_) => {}
        }
        Ok(())
    }

    /// Forgets the prefixes of one group: neither they nor later blocks are found any more.
    fn forget(&mut self, group: usize) {
        let of = &mut self.groups[group];
        of.planner.forget_prefixes();
        of.computed.clear();
        let removed = of.removed;
        of.follow();
        of.removed = removed;
        let snapshots = self.snapshots.iter_mut().map(|snapshot| &mut snapshot.sequence);
        self.sequences.values_mut().chain(snapshots).for_each(|of| of.known[group] = 0);
    }

    fn pick(&self, of: usize) -> u64 {
        *self.sequences.keys().nth(of % self.sequences.len()).unwrap()
    }

    fn add(&mut self, ids: &[u64], sequence: Sequence) -> Done {
        prop_assert!(ids.iter().all(|id| *id == ids[0]));
        self.sequences.insert(ids[0], sequence);
        Ok(())
    }
}

fn identity(salt: u8) -> Identity {
    Identity { root: BlockKey::root(&[7; 32], b"model", &[salt]), extra: Arc::default() }
}

/// The name of the last of these whole blocks.
fn key_of(salt: u8, tokens: &[u32], size: usize) -> BlockKey {
    let child =
        |last: BlockKey, (at, block): (usize, &[u32])| last.child(block, (at * size) as u32, &Extras::default());
    tokens.chunks(size).enumerate().fold(identity(salt).root, child)
}

fn value(salt: u8, tokens: &[u32]) -> Value {
    let mut hasher = DefaultHasher::new();
    (salt, tokens).hash(&mut hasher);
    (hasher.finish() as Value >> 1) | 1 << 31
}
