//! Groups in lockstep: every sequence is in each of them, by the same id.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, HashSet};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use kvtide_core::paged::{
    Append, Event, Extras, Held, Identity, Key, PagedPlanner, Reason, Window, Writer, can_allocate_in_groups,
    explain_in_groups, find_in_groups,
};
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
    Append(usize, Vec<u32>),
    Truncate(usize, u32),
    Find(Vec<u32>, u8, bool, bool),
    Forget(usize),
}

struct Group {
    planner: PagedPlanner,
    memory: Memory,
    window: Option<(u32, u32)>,
    /// Keys of the blocks that can be found, by its events.
    keys: HashSet<Key>,
    seen: u64,
}

pub struct World {
    block_size: usize,
    groups: Vec<Group>,
    sequences: BTreeMap<u64, (u8, Vec<u32>)>,
}

impl World {
    pub fn new(shape: &Shape) -> Self {
        let group = |&window: &Option<(u32, u32)>| {
            let mut planner = PagedPlanner::new(shape.capacity, shape.block_size, 1).unwrap();
            if let Some((tokens, sinks)) = window {
                planner = planner.sliding(Window::new(tokens, sinks).unwrap());
            }
            planner.keep_events(1 << 20);
            Group { planner, memory: Memory::default(), window, keys: HashSet::new(), seen: 0 }
        };
        let groups = shape.groups.iter().map(group).collect();
        World { block_size: shape.block_size as usize, groups, sequences: BTreeMap::new() }
    }

    pub fn call(&mut self, call: &Call) -> Done {
        match call {
            Call::Create(salt) => {
                let ids: Vec<u64> =
                    self.groups.iter_mut().map(|of| of.planner.create_sequence_of(identity(*salt)).unwrap()).collect();
                self.add(&ids, *salt, Vec::new())?;
            }
            Call::Find(tokens, salt, partial, keep) => self.find(tokens, *salt, *partial, *keep)?,
            Call::Forget(group) => {
                let group = group % self.groups.len();
                self.groups[group].planner.forget_prefixes();
            }
            _ if self.sequences.is_empty() => {}
            Call::Drop(of) => {
                let id = self.pick(*of);
                self.groups.iter_mut().for_each(|of| of.planner.drop_sequence(id).unwrap());
                self.sequences.remove(&id);
            }
            Call::Fork(of) => {
                let id = self.pick(*of);
                let ids: Vec<u64> = self.groups.iter_mut().map(|of| of.planner.fork(id).unwrap()).collect();
                let (salt, tokens) = self.sequences[&id].clone();
                self.add(&ids, salt, tokens)?;
            }
            Call::Append(of, tokens) => self.append(self.pick(*of), tokens),
            Call::Truncate(of, length) => {
                let (id, length) = (self.pick(*of), *length);
                let before = self.sequences[&id].1.len();
                // A window that is gone in one group refuses for all.
                let goes = |of: &Group| {
                    let gap = of.planner.gap(id).unwrap();
                    let first = of.window.map_or(0, |(tokens, _)| (length + 1).saturating_sub(tokens));
                    gap.is_empty() || first >= gap.end
                };
                if (length as usize) < before && self.groups.iter().all(goes) {
                    self.groups.iter_mut().for_each(|of| of.planner.truncate(id, length).unwrap());
                    self.sequences.get_mut(&id).unwrap().1.truncate(length as usize);
                }
            }
        }
        Ok(())
    }

    fn pick(&self, of: usize) -> u64 {
        *self.sequences.keys().nth(of % self.sequences.len()).unwrap()
    }

    fn add(&mut self, ids: &[u64], salt: u8, tokens: Vec<u32>) -> Done {
        prop_assert!(ids.iter().all(|id| *id == ids[0]));
        self.sequences.insert(ids[0], (salt, tokens));
        Ok(())
    }

    /// Appends in all groups, or in none where one has too few blocks.
    fn append(&mut self, id: u64, tokens: &[u32]) {
        let offsets = [0, tokens.len() as u32];
        let append = Append { sequences: &[id], offsets: Some(&offsets), parents: None, writer: Writer::Direct };
        let fits = |of: &Group| of.planner.plan_copies(&of.planner.append_targets(&append).unwrap()).is_ok();
        if !self.groups.iter().all(fits) {
            return;
        }
        let (salt, ids) = self.sequences.get_mut(&id).unwrap();
        let before = ids.len();
        ids.extend(tokens);
        for Group { planner, memory, .. } in &mut self.groups {
            let copies = planner.plan_copies(&planner.append_targets(&append).unwrap()).unwrap();
            copies.copies().iter().for_each(|copy| memory.copy(planner, copy));
            planner.commit_copies(&copies).unwrap();
            let plan = planner.plan_append(&append).unwrap();
            memory.write(planner, &plan, |_, at| value(*salt, &ids[..=before + at as usize]));
            planner.commit(&plan, Some(tokens)).unwrap();
        }
    }

    fn find(&mut self, tokens: &[u32], salt: u8, partial: bool, keep: bool) -> Done {
        let (expected, identity) = (self.longest(tokens, salt), identity(salt));
        self.explain(tokens, &identity, expected)?;
        let planners: Vec<&PagedPlanner> = self.groups.iter().map(|of| &of.planner).collect();
        let has_room = can_allocate_in_groups(&planners, tokens, &identity, 0).unwrap();
        let mut planners: Vec<&mut PagedPlanner> = self.groups.iter_mut().map(|of| &mut of.planner).collect();
        let held = find_in_groups(&mut planners, tokens, &identity, partial).unwrap();
        let length = held[0].length() as usize;
        prop_assert!(held.iter().all(|held| held.length() as usize == length));
        let all_full = self.groups.iter().all(|of| of.window.is_none());
        let most = if partial && all_full { self.block_size - 1 } else { 0 };
        prop_assert!((expected..=expected + most).contains(&length), "{} found, {} expected", length, expected);
        prop_assert!(length < tokens.len().max(1));
        if !keep {
            let give_back = |(of, held): (&mut Group, Held)| of.planner.release(held);
            self.groups.iter_mut().zip(held).for_each(give_back);
            return Ok(());
        }
        let create = |(of, held): (&mut Group, Held)| of.planner.create_from(held).unwrap();
        let ids: Vec<u64> = self.groups.iter_mut().zip(held).map(create).collect();
        self.add(&ids, salt, tokens[..length].to_vec())?;
        if !partial {
            // There is room when, and only when, the rest can be appended at once.
            self.append(ids[0], &tokens[length..]);
            prop_assert_eq!(self.sequences[&ids[0]].1.len() == tokens.len(), has_room);
        }
        Ok(())
    }

    /// Tokens of the longest run of whole blocks from which all groups can go on, tried one by one.
    fn longest(&self, tokens: &[u32], salt: u8) -> usize {
        let size = self.block_size;
        let mut keys = vec![];
        let mut last = identity(salt).root;
        for (at, block) in tokens[..tokens.len().saturating_sub(1) / size * size].chunks(size).enumerate() {
            last = last.child(block, (at * size) as u32, &Extras::default());
            keys.push(last);
        }
        let goes_on = |of: &Group, length: usize| {
            (0..length).all(|token| {
                let seen =
                    of.window.is_none_or(|(tokens, sinks)| token < sinks as usize || token + tokens as usize > length);
                !seen || of.keys.contains(&keys[token / size])
            })
        };
        let all = |blocks: &usize| self.groups.iter().all(|of| goes_on(of, blocks * size));
        (0..=keys.len()).rev().find(all).unwrap_or(0) * size
    }

    fn explain(&self, tokens: &[u32], identity: &Identity, expected: usize) -> Done {
        let planners: Vec<&PagedPlanner> = self.groups.iter().map(|of| &of.planner).collect();
        let why = explain_in_groups(&planners, tokens, identity).unwrap();
        prop_assert_eq!(why.matched as usize, expected);
        let whole = tokens.len().saturating_sub(1) / self.block_size;
        prop_assert_eq!(
            why.missing.map(|missing| missing.0 as usize),
            (expected / self.block_size < whole).then_some(expected / self.block_size)
        );
        let full = self.groups.iter().filter(|of| of.window.is_none());
        let of_full = full.map(|of| of.planner.explain(tokens, identity).unwrap()).min_by_key(|of| of.matched);
        if let Some(of_full) = of_full {
            let gone = why.missing.is_some_and(|missing| missing.1 == Reason::WindowGone);
            prop_assert_eq!(gone, of_full.matched as usize > expected);
            prop_assert!(gone || why == of_full);
        }
        Ok(())
    }

    pub fn check(&mut self) -> Done {
        for of in &mut self.groups {
            of.planner.check_invariants(&[]).map_err(TestCaseError::fail)?;
            of.follow();
            for (&id, (salt, tokens)) in &self.sequences {
                prop_assert_eq!(of.planner.sequence_length(id) as usize, tokens.len());
                let gap = of.planner.gap(id).unwrap();
                if let Some((window, sinks)) = of.window {
                    prop_assert!(gap.is_empty() || (gap.start >= sinks && gap.end + window <= tokens.len() as u32 + 1));
                }
                for position in (0..tokens.len() as u32).filter(|position| !gap.contains(position)) {
                    let slot = of.planner.locate(id, 0, position).unwrap();
                    let read = of.memory.read(None, slot.block, 0, slot.slot);
                    prop_assert_eq!(read, value(*salt, &tokens[..=position as usize]), "{} of {}", position, id);
                }
            }
        }
        Ok(())
    }

    /// After everything is dropped, everything is free.
    pub fn end(mut self) -> Done {
        for id in std::mem::take(&mut self.sequences).into_keys() {
            self.groups.iter_mut().for_each(|of| of.planner.drop_sequence(id).unwrap());
        }
        self.check()?;
        for of in &mut self.groups {
            of.planner.forget_prefixes();
            prop_assert_eq!(of.planner.pool_stats().free, of.planner.total_count());
        }
        Ok(())
    }
}

impl Group {
    fn follow(&mut self) {
        let unseen = self.planner.events(self.seen);
        for event in unseen.events.into_iter().flatten() {
            match event {
                Event::Stored { key, .. } => drop(self.keys.insert(*key)),
                Event::Removed { key } => drop(self.keys.remove(key)),
                Event::Cleared => self.keys.clear(),
            }
        }
        self.seen = unseen.next;
    }
}

fn identity(salt: u8) -> Identity {
    Identity { root: Key::root(&[7; 32], b"model", &[salt]), extra: Arc::default() }
}

fn value(salt: u8, tokens: &[u32]) -> Value {
    let mut hasher = DefaultHasher::new();
    (salt, tokens).hash(&mut hasher);
    (hasher.finish() as Value >> 1) | 1 << 31
}
