//! Runs the planner and the model side by side.

use std::collections::{BTreeMap, BTreeSet};

use kvtide_core::Code;
use kvtide_core::paged::{Append, BlockKey, Event, Extras, HeldContent, PagedPlanner, Window, Writer};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::model::{Model, Table};
use super::policies::Policy;
use super::ranks::{NEVER, at, step_of};

type Done = Result<(), TestCaseError>;

#[derive(Clone, Debug)]
pub struct Shape {
    pub capacity: u32,
    pub block_size: u32,
    /// Tokens and sinks.
    pub window: Option<(u32, u32)>,
    pub policy: Policy,
}

#[derive(Clone, Debug)]
pub enum Call {
    Create,
    Drop(usize),
    Fork(usize),
    Append(usize, u32),
    /// So many tokens less.
    Truncate(usize, u32),
    /// The same, and one token instead.
    Rewrite(usize, u32),
    Snapshot(usize),
    Restore(usize, usize),
    Release(usize),
    /// From so many tokens before the end on, so many of them.
    Retain(usize, u32, u32, u8, Option<u64>),
    Advance(u64),
    /// Takes blocks, and gives them back with nothing in them.
    Take(u32),
}

/// Blocks and tokens of a sequence, or of a snapshot.
#[derive(Clone, Debug, Default)]
struct Content {
    table: Table,
    tokens: Vec<u32>,
    /// Places before this one, but for sinks, have no block.
    cleared: usize,
}

pub struct World {
    size: usize,
    window: Option<(u32, u32)>,
    planner: PagedPlanner,
    model: Model,
    sequences: BTreeMap<u64, Content>,
    snapshots: Vec<(HeldContent, Content)>,
    next_token: u32,
    seen: u64,
}

impl World {
    pub fn new(Shape { capacity, block_size, window, policy }: Shape) -> Self {
        let mut planner = PagedPlanner::new(capacity, block_size, 1).unwrap();
        if let Some((tokens, sinks)) = window {
            planner = planner.sliding(Window::new(tokens, sinks).unwrap());
        }
        if let Some(policy) = policy.make() {
            planner = planner.evicting(policy);
        }
        planner.keep_events(1 << 16);
        World {
            size: block_size as usize,
            window,
            planner,
            model: Model::new(policy, capacity),
            sequences: BTreeMap::new(),
            snapshots: Vec::new(),
            next_token: 0,
            seen: 0,
        }
    }

    pub fn call(&mut self, call: &Call) -> Done {
        match *call {
            Call::Create => {
                let id = self.planner.create_sequence().unwrap();
                self.sequences.insert(id, Content::default());
            }
            Call::Advance(by) => {
                self.model.advance(self.model.now + by);
                self.planner.advance_clock(self.model.now);
            }
            Call::Take(blocks) => self.take(blocks.min(self.model.available())),
            Call::Release(at) if !self.snapshots.is_empty() => {
                let (held, content) = self.snapshots.swap_remove(at % self.snapshots.len());
                self.planner.release(held);
                self.model.let_go(&content.table, 0..content.table.len());
            }
            _ if self.sequences.is_empty() => {}
            Call::Drop(of) => {
                let id = self.pick(of);
                self.planner.drop_sequence(id).unwrap();
                let content = self.sequences.remove(&id).unwrap();
                self.model.let_go(&content.table, 0..content.table.len());
            }
            Call::Fork(of) => {
                let id = self.pick(of);
                let fork = self.planner.fork(id).unwrap();
                let copy = self.copied(id);
                self.sequences.insert(fork, copy);
            }
            Call::Append(of, tokens) => self.append(self.pick(of), tokens),
            Call::Truncate(of, fewer) => self.truncate(self.pick(of), fewer)?,
            Call::Rewrite(of, fewer) => {
                self.truncate(self.pick(of), fewer)?;
                self.append(self.pick(of), 1);
            }
            Call::Snapshot(of) => {
                let id = self.pick(of);
                let held = self.planner.snapshot(id).unwrap();
                let copy = self.copied(id);
                self.snapshots.push((held, copy));
            }
            Call::Restore(of, at) if !self.snapshots.is_empty() => {
                let id = self.pick(of);
                let (held, content) = &self.snapshots[at % self.snapshots.len()];
                self.planner.restore(id, held).unwrap();
                self.model.hold(&content.table);
                let before = self.sequences.insert(id, content.clone()).unwrap();
                self.model.let_go(&before.table, 0..before.table.len());
            }
            Call::Retain(of, back, len, priority, until) => self.retain(self.pick(of), back, len, priority, until),
            Call::Release(_) | Call::Restore(..) => {}
        }
        Ok(())
    }

    fn pick(&self, of: usize) -> u64 {
        *self.sequences.keys().nth(of % self.sequences.len()).unwrap()
    }

    fn copied(&mut self, id: u64) -> Content {
        let copy = self.sequences[&id].clone();
        self.model.hold(&copy.table);
        copy
    }

    fn take(&mut self, blocks: u32) {
        let taker = self.planner.create_sequence().unwrap();
        self.planner.ensure_capacity(&[(taker, blocks * self.size as u32)]).unwrap();
        self.planner.drop_sequence(taker).unwrap();
        let table: Table = (0..blocks).map(|_| Some(self.model.take())).collect();
        self.model.let_go(&table, 0..table.len());
    }

    fn retain(&mut self, id: u64, back: u32, len: u32, priority: u8, until: Option<u64>) {
        let of = &self.sequences[&id];
        let from = (of.tokens.len() as u32).saturating_sub(back);
        self.planner.retain(id, from..from + len, priority, until).unwrap();
        // Every block counts that has one of the tokens.
        let tokens = from as usize..(from + len) as usize;
        let has_one = |&(place, _): &_| tokens.clone().any(|token| token / self.size == place);
        for block in of.table.iter().enumerate().filter(has_one).filter_map(|(_, block)| *block) {
            let block = &mut self.model.blocks[block];
            (block.own, block.inherited) = (at(step_of(priority, until), self.model.now), (0, 0, NEVER));
        }
    }

    fn append(&mut self, id: u64, tokens: u32) {
        let ids: Vec<u32> = (self.next_token..self.next_token + tokens).collect();
        let (offsets, sequences) = ([0, tokens], [id]);
        let append = Append { sequences: &sequences, offsets: Some(&offsets), parents: None, writer: Writer::Direct };
        let write = self.planner.check_append(&append).unwrap();
        let Ok((copies, mut plan)) = self.planner.plan_write(write) else { return };
        self.planner.commit_copies_before(&copies, &mut plan).unwrap();
        self.planner.commit(&plan, Some(&ids)).unwrap();
        self.next_token += tokens;
        let of = self.sequences.get_mut(&id).unwrap();
        let end = (of.tokens.len() + ids.len()).div_ceil(self.size);
        if tokens > 0 && !of.tokens.len().is_multiple_of(self.size) {
            copy_last(&mut self.model, of, end);
        }
        of.tokens.extend(ids);
        while tokens > 0 && of.table.len() < end {
            of.table.push(Some(self.model.take()));
        }
        self.settle(id);
    }

    /// Names blocks that are full, and gives up those that left the window.
    fn settle(&mut self, id: u64) {
        let of = self.sequences.get_mut(&id).unwrap();
        let mut last = kvtide_core::paged::Identity::default().root;
        for (place, tokens) in of.tokens.chunks_exact(self.size).enumerate() {
            last = last.child(tokens, (place * self.size) as u32, &Extras::default());
            if let Some(block) = of.table[place] {
                self.model.blocks[block].key = Some(last);
            }
        }
        let Some((window, sinks)) = self.window else { return };
        let first = (of.tokens.len().saturating_sub(1)).saturating_sub(window as usize - 1) / self.size;
        let from = of.cleared.max((sinks as usize).div_ceil(self.size));
        if from < first {
            self.model.let_go(&of.table[..first].to_vec(), from..first);
            of.table[from..first].fill(None);
            of.cleared = first;
        }
    }

    fn truncate(&mut self, id: u64, fewer: u32) -> Done {
        let of = self.sequences.get_mut(&id).unwrap();
        let length = of.tokens.len().saturating_sub(fewer as usize);
        if let Err(error) = self.planner.truncate(id, length as u32) {
            prop_assert!(error.code() == Code::CannotRollBack && of.cleared > 0);
            return Ok(());
        }
        of.tokens.truncate(length);
        let kept = length.div_ceil(self.size);
        self.model.let_go(&of.table, kept..of.table.len());
        of.table.truncate(kept);
        of.cleared = of.cleared.min(kept);
        Ok(())
    }

    /// Checks that the evicted blocks are those of the model, in its order.
    pub fn check(&mut self) -> Done {
        let held: Vec<&HeldContent> = self.snapshots.iter().map(|(held, _)| held).collect();
        self.planner.check_invariants(&held).map_err(TestCaseError::fail)?;
        let unseen = self.planner.events(self.seen);
        let removed = |event: &Event| if let Event::Removed { key } = event { Some(*key) } else { None };
        let gone: Vec<BlockKey> = unseen.events.into_iter().flatten().filter_map(removed).collect();
        self.seen = unseen.next;
        prop_assert_eq!(gone, std::mem::take(&mut self.model.gone));
        prop_assert_eq!(self.planner.free_count(), self.model.available());
        let keys: BTreeSet<[u8; 32]> = self.planner.indexed_keys().unwrap().iter().map(|key| key.0).collect();
        let named = self.model.blocks.iter().enumerate().filter(|(at, _)| self.model.is_there(*at));
        prop_assert_eq!(keys, named.filter_map(|(_, block)| Some(block.key?.0)).collect::<BTreeSet<_>>());
        Ok(())
    }

    /// Evicts all blocks one by one and compares the order with the model; blocks that are left must still be found, except
    /// after a new priority or in a window.
    pub fn end(mut self) -> Done {
        while let Some((id, content)) = self.sequences.pop_first() {
            self.planner.drop_sequence(id).unwrap();
            self.model.let_go(&content.table, 0..content.table.len());
        }
        while let Some((held, content)) = self.snapshots.pop() {
            self.planner.release(held);
            self.model.let_go(&content.table, 0..content.table.len());
        }
        let all = self.model.available();
        self.take(all);
        self.check()?;
        prop_assert_eq!(self.planner.pool_stats().free, all);
        Ok(())
    }
}

/// A last block that is shared or named is copied before more is written to it, where a block is left for that.
fn copy_last(model: &mut Model, of: &mut Content, end: usize) {
    let place = of.table.len() - 1;
    let block = of.table[place].unwrap();
    let (is_shared, new) = (model.is_shared(block), (end - of.table.len()) as u32);
    if is_shared || model.blocks[block].key.is_some() && model.available() > new {
        of.table[place] = Some(model.take());
        let mut before = of.table.clone();
        before[place] = Some(block);
        model.let_go(&before, place..place + 1);
    } else if let Some(key) = model.blocks[block].key.take() {
        model.gone.push(key);
    }
}
