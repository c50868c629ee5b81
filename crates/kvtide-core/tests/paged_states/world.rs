//! The planners of both groups, the memory of the slots, and the tokens that each sequence should have.

use std::collections::HashMap;

use kvtide_core::paged::{
    Append, BlockKey, Explanation, HeldContent, Identity, Keep, MissReason, PagedPlanner, WritePlan, Writer,
    explain_in_groups, find_in_groups, prompt_states,
};
use kvtide_core::{Error, TransactionId};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

type Done = Result<(), TestCaseError>;

#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub slots: u32,
    pub blocks: u32,
    pub block_size: u32,
    /// True if steps of drafts keep the state after each token.
    pub drafts_each: bool,
}

/// A call. `usize` is a sequence or snapshot, by its place in the list of those that exist.
#[derive(Clone, Debug)]
pub enum Call {
    Create(u8),
    Drop(usize),
    Fork(usize),
    /// Tokens of sequences, whether their ids are known, and the end: a commit, an undo, or a drop of the first sequence
    /// before the undo.
    Step(Vec<(usize, Vec<u32>)>, bool, u8),
    Truncate(usize, u32),
    Snapshot(usize),
    Restore(usize, usize),
    Release(usize),
    Begin(usize),
    /// A transaction with one step, of which so many tokens are kept; whether their ids are known.
    Draft(usize, Vec<u32>, u64, bool),
    End(usize, Option<u64>),
    Rollback(usize, bool),
    Find(usize, Vec<u32>, u8),
    Identify(usize),
    Forget,
    Save(usize),
}

#[derive(Clone, Debug)]
struct Model {
    id: u64,
    tokens: Vec<u32>,
    salt: u8,
    /// Open transactions, with their ids in both planners, and the tokens from before each.
    drafts: Vec<(TransactionId, Vec<u32>)>,
    /// The number of tokens before the last step of an open transaction, if the state after each of its tokens is kept.
    kept_from: Option<usize>,
}

pub struct World {
    planners: [PagedPlanner; 2],
    /// The hash in each slot.
    slots: HashMap<u32, u64>,
    models: Vec<Model>,
    snapshots: Vec<([HeldContent; 2], Vec<u32>, u8)>,
    size: u32,
    /// The number of drafts of which a part was committed.
    pub parts: u32,
}

/// The state after some tokens.
fn hash(tokens: &[u32]) -> u64 {
    tokens
        .iter()
        .fold(7, |hash: u64, &token| (hash ^ u64::from(token + 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(9))
}

fn identity(salt: u8) -> Identity {
    Identity { root: BlockKey::root(&[7; 32], b"model", &[salt]), ..Identity::default() }
}

impl World {
    pub fn new(Shape { slots, blocks, block_size, drafts_each }: Shape) -> Self {
        let full = PagedPlanner::new(blocks, block_size, 1).unwrap();
        let mut states = PagedPlanner::new(slots, block_size, 1).unwrap().keeping_states();
        states.keep_drafted_states(drafts_each);
        World {
            planners: [full, states],
            slots: HashMap::new(),
            models: Vec::new(),
            snapshots: Vec::new(),
            size: block_size,
            parts: 0,
        }
    }

    fn at(&self, of: usize) -> Option<usize> {
        (!self.models.is_empty()).then(|| of % self.models.len())
    }

    pub fn call(&mut self, call: &Call) -> Done {
        match call {
            Call::Create(salt) => self.create(*salt),
            Call::Step(shares, known, end) => self.step(shares, *known, *end),
            Call::Draft(of, ids, kept, known) => {
                self.call(&Call::Begin(*of))?;
                self.step(&[(*of, ids.clone())], *known, 7)?;
                self.call(&Call::End(*of, Some(*kept)))
            }
            Call::Find(of, more, salt) => self.find(*of, more, *salt),
            Call::Forget => {
                self.planners.iter_mut().for_each(PagedPlanner::forget_prefixes);
                Ok(())
            }
            Call::Release(snapshot) => {
                if !self.snapshots.is_empty() {
                    let (held, ..) = self.snapshots.swap_remove(snapshot % self.snapshots.len());
                    self.planners.iter_mut().zip(held).for_each(|(planner, held)| planner.release(held));
                }
                Ok(())
            }
            Call::Drop(of)
            | Call::Fork(of)
            | Call::Truncate(of, _)
            | Call::Snapshot(of)
            | Call::Restore(of, _)
            | Call::Begin(of)
            | Call::End(of, _)
            | Call::Rollback(of, _)
            | Call::Identify(of)
            | Call::Save(of) => match self.at(*of) {
                Some(at) => self.call_of(at, call),
                None => Ok(()),
            },
        }
    }

    fn call_of(&mut self, at: usize, call: &Call) -> Done {
        let id = self.models[at].id;
        match call {
            Call::Drop(_) => {
                self.models.remove(at);
                self.each(|planner| planner.drop_sequence(id).unwrap());
            }
            Call::Fork(_) => {
                let forks = self.each(|planner| planner.fork(id).unwrap());
                let model = Model { id: forks[0], drafts: Vec::new(), kept_from: None, ..self.models[at].clone() };
                self.models.push(model);
            }
            Call::Truncate(_, length) => self.truncate(at, *length)?,
            Call::Snapshot(_) => {
                let [first, second] = &mut self.planners;
                let held = [first.snapshot(id).unwrap(), second.snapshot(id).unwrap()];
                self.snapshots.push((held, self.models[at].tokens.clone(), self.models[at].salt));
            }
            Call::Restore(_, snapshot) if !self.snapshots.is_empty() => {
                let (held, tokens, salt) = &self.snapshots[snapshot % self.snapshots.len()];
                let fits = *salt == self.models[at].salt && self.models[at].drafts.is_empty();
                for (planner, held) in self.planners.iter_mut().zip(held) {
                    prop_assert_eq!(planner.restore(id, held).is_ok(), fits);
                }
                if fits {
                    self.models[at].tokens.clone_from(tokens);
                }
            }
            Call::Begin(_) => {
                let parent = self.models[at].drafts.last().map(|draft| draft.0);
                let begun = self.each(|planner| planner.begin(id, parent).unwrap());
                let before = self.models[at].tokens.clone();
                self.models[at].drafts.push((begun[0], before));
            }
            Call::End(_, kept) => self.end_draft(at, *kept)?,
            Call::Rollback(_, inner) => {
                let drafts = &mut self.models[at].drafts;
                if !drafts.is_empty() {
                    let place = if *inner { drafts.len() - 1 } else { 0 };
                    let (draft, before) = drafts[place].clone();
                    drafts.truncate(place);
                    if place == 0 || before.len() < self.models[at].tokens.len() {
                        self.models[at].kept_from = None;
                    }
                    self.models[at].tokens = before;
                    self.each(|planner| planner.undo(id, draft).unwrap());
                }
            }
            Call::Identify(_) if self.models[at].drafts.is_empty() => {
                let tokens = self.models[at].tokens.clone();
                let known = self.each(|planner| planner.identify(id, &tokens).unwrap());
                prop_assert!(known.iter().all(|&known| known as usize <= tokens.len()));
            }
            Call::Save(_) if self.models[at].drafts.is_empty() => self.save(at)?,
            _ => {}
        }
        Ok(())
    }

    fn each<T>(&mut self, mut call: impl FnMut(&mut PagedPlanner) -> T) -> [T; 2] {
        let [first, second] = &mut self.planners;
        [call(first), call(second)]
    }

    fn create(&mut self, salt: u8) -> Done {
        let [id, other] = self.each(|planner| planner.create_sequence_of(identity(salt)).unwrap());
        prop_assert_eq!(id, other);
        self.models.push(Model { id, tokens: Vec::new(), salt, drafts: Vec::new(), kept_from: None });
        Ok(())
    }

    fn step(&mut self, shares: &[(usize, Vec<u32>)], known: bool, end: u8) -> Done {
        let mut asked: Vec<(usize, &[u32])> = Vec::new();
        for (of, ids) in shares {
            if let Some(at) = self.at(*of)
                && asked.iter().all(|(other, _)| *other != at)
            {
                asked.push((at, ids));
            }
        }
        let sequences: Vec<u64> = asked.iter().map(|(at, _)| self.models[*at].id).collect();
        let mut offsets = vec![0];
        asked.iter().for_each(|(_, ids)| offsets.push(offsets.last().unwrap() + ids.len() as u32));
        let ids: Vec<u32> = asked.iter().flat_map(|(_, ids)| ids.iter().copied()).collect();
        let append = Append { sequences: &sequences, offsets: Some(&offsets), parents: None, writer: Writer::Step };
        let mut plans = Vec::new();
        self.make_room(sequences.len() as u32);
        for planner in &self.planners {
            let planned = planner.check_append(&append).and_then(|write| planner.plan_write(write));
            match planned {
                Ok(planned) => plans.push(planned),
                Err(Error::OutOfBlocks { .. }) => return Ok(()),
                Err(error) => panic!("{error}"),
            }
        }
        for (planner, (copies, plan)) in self.planners.iter_mut().zip(&mut plans) {
            planner.reserve_after(copies, plan).unwrap();
            planner.commit_copies_before(copies, plan).unwrap();
            planner.open_step(plan).unwrap();
        }
        let plans: Vec<WritePlan> = plans.into_iter().map(|(_, plan)| plan).collect();
        let are_kept = self.write_slots(&asked, &plans[1])?;
        for (planner, plan) in self.planners.iter_mut().zip(&plans) {
            planner.mark_layer(plan, 0).unwrap();
        }
        match end {
            0 | 1 => {
                if end == 1 && !asked.is_empty() {
                    let gone = self.models.remove(asked[0].0).id;
                    self.each(|planner| planner.drop_sequence(gone).unwrap());
                }
                for (planner, plan) in self.planners.iter_mut().zip(&plans) {
                    planner.undo_step(plan).unwrap();
                }
            }
            _ => {
                for (planner, plan) in self.planners.iter_mut().zip(&plans) {
                    planner.close_step(plan, known.then_some(&ids[..])).unwrap();
                }
                for ((at, ids), is_kept) in asked.into_iter().zip(are_kept) {
                    let model = &mut self.models[at];
                    if !ids.is_empty() {
                        model.kept_from = is_kept.then_some(model.tokens.len());
                    }
                    model.tokens.extend(ids);
                }
            }
        }
        Ok(())
    }

    /// Writes the slots of a step. Returns, for each sequence, true if the state after each token is kept.
    fn write_slots(&mut self, asked: &[(usize, &[u32])], plan: &WritePlan) -> Result<Vec<bool>, TestCaseError> {
        // A slot that anything else could read must not be written.
        let mut are_kept = Vec::new();
        for ((at, ids), runs) in asked.iter().zip(plan.runs_of_sequences()) {
            let model = &self.models[*at];
            let before = self.planners[1].state_slot(model.id).unwrap();
            let is_each = runs.len() > 1;
            let expected = if is_each { ids.len() } else { usize::from(!ids.is_empty()) };
            prop_assert_eq!(runs.len(), expected);
            prop_assert!(!is_each || !model.drafts.is_empty());
            for (place, run) in runs.iter().enumerate() {
                prop_assert_eq!((run.slot, run.len), (0, self.size));
                prop_assert_ne!(before, Some(run.block));
                let own = if is_each { &ids[..=place] } else { ids };
                let all: Vec<u32> = model.tokens.iter().chain(own).copied().collect();
                self.slots.insert(run.block, hash(&all));
            }
            are_kept.push(is_each);
        }
        Ok(are_kept)
    }

    /// States between drafted tokens give way to others.
    fn make_room(&mut self, needed: u32) {
        let states = &mut self.planners[1];
        let free = states.total_count() - states.pool_stats().active;
        let slots = |model: &Model| model.kept_from.map_or(0, |from| model.tokens.len() - from) as u32;
        let is_enough = needed <= free + self.models.iter().map(slots).sum::<u32>();
        let are_released = free < needed && is_enough;
        assert_eq!(states.make_room_for_states(needed.into()), are_released, "only where that is enough");
        if are_released {
            self.models.iter_mut().for_each(|model| model.kept_from = None);
        }
    }

    fn truncate(&mut self, at: usize, length: u32) -> Done {
        let model = &self.models[at];
        let (id, before) = (model.id, model.tokens.len() as u32);
        let checks: Vec<Result<(), Error>> =
            self.planners.iter().map(|planner| planner.check_truncate(id, length)).collect();
        if let Err(Error::NoStateHere { below, above, .. }) = checks[1] {
            prop_assert!(
                length < before && below < u64::from(length) && above.is_some_and(|above| above > length.into())
            );
            prop_assert_eq!(self.planners[1].check_truncate(id, below as u32), Ok(()));
            // The sequence goes back further.
            return self.truncate(at, below as u32);
        }
        if checks.iter().any(Result::is_err) {
            prop_assert!(length != 0 && length != before || !model.drafts.is_empty());
            return Ok(());
        }
        self.each(|planner| planner.truncate(id, length).unwrap());
        self.models[at].tokens.truncate(length as usize);
        Ok(())
    }

    fn end_draft(&mut self, at: usize, kept: Option<u64>) -> Done {
        let Some((draft, before)) = self.models[at].drafts.last().cloned() else { return Ok(()) };
        let (id, all) = (self.models[at].id, (self.models[at].tokens.len() - before.len()) as u64);
        let keep = kept.map_or(Keep::All, Keep::First);
        let kept = kept.unwrap_or(all);
        let plans: Vec<_> = self.planners.iter().map(|planner| planner.plan_end(id, draft, keep)).collect();
        let is_kept = self.models[at].kept_from.is_some_and(|from| from as u64 <= before.len() as u64 + kept);
        prop_assert_eq!(plans[1].is_ok(), kept == 0 || kept == all || kept < all && is_kept);
        if plans.iter().any(Result::is_err) {
            return Ok(());
        }
        for (planner, plan) in self.planners.iter_mut().zip(plans) {
            planner.end(&plan.unwrap()).unwrap();
        }
        let model = &mut self.models[at];
        model.tokens.truncate(before.len() + kept as usize);
        model.drafts.pop();
        if kept < all || model.drafts.is_empty() {
            model.kept_from = None;
        }
        self.parts += u32::from(kept > 0 && kept < all);
        Ok(())
    }

    fn find(&mut self, of: usize, more: &[u32], salt: u8) -> Done {
        let tokens = self.at(of).map_or(Vec::new(), |at| self.models[at].tokens.clone());
        let prompt: Vec<u32> = tokens.iter().chain(more).copied().collect();
        let [full, states] = &self.planners;
        let told = prompt_states(&[full, states], &prompt, &identity(salt)).unwrap();
        let Explanation { matched, missing } = explain_in_groups(&[full, states], &prompt, &identity(salt)).unwrap();
        prop_assert_eq!(told.found, matched);
        prop_assert!(told.cached >= matched && told.above.is_none_or(|above| above > matched && above <= told.cached));
        let is_lost = missing.is_some_and(|(_, why)| why == MissReason::NoStateHere);
        prop_assert_eq!(is_lost, told.cached > told.found);
        let before = self.planners[1].pool_stats().counters.lost_tokens;
        let [full, states] = &mut self.planners;
        let held = find_in_groups(&mut [full, states], &prompt, &identity(salt), true).unwrap();
        let length = held[0].length();
        prop_assert_eq!((length, held[1].length()), (matched, matched));
        let lost = self.planners[1].pool_stats().counters.lost_tokens - before;
        prop_assert_eq!(lost, u64::from(told.cached - told.found));
        let mut ids = Vec::new();
        for (planner, held) in self.planners.iter_mut().zip(held) {
            ids.push(planner.create_from(held).unwrap());
        }
        let tokens = prompt[..length as usize].to_vec();
        self.models.push(Model { id: ids[0], tokens, salt, drafts: Vec::new(), kept_from: None });
        Ok(())
    }

    /// Saves a sequence and loads it again into new blocks.
    fn save(&mut self, at: usize) -> Done {
        let Model { id, tokens, salt, .. } = self.models[at].clone();
        self.make_room(u32::from(!tokens.is_empty()));
        let mut loaded = Vec::new();
        for (group, planner) in self.planners.iter_mut().enumerate() {
            let held = planner.snapshot(id).unwrap();
            let saved = planner.saved_content(&held).unwrap();
            let blocks: Vec<u32> =
                saved.places.iter().map(|&place| planner.held_block(&held, place).unwrap()).collect();
            let rows: Vec<_> = saved
                .places
                .iter()
                .zip(&blocks)
                .map(|(&place, &block)| planner.saved_row(block, saved.kept(place, self.size)))
                .collect();
            planner.release(held);
            planner.check_saved(&saved, &rows).unwrap();
            let Ok(new) = planner.hold_new(&saved.places, saved.length.div_ceil(self.size)) else { break };
            for (place, block) in saved.places.iter().zip(blocks) {
                let to = planner.held_block(&new, *place).unwrap();
                if group == 1 {
                    prop_assert_ne!(to, block);
                    self.slots.insert(to, self.slots[&block]);
                }
            }
            let since = planner.forgotten();
            loaded.push(planner.settle(new, &saved, &rows, identity(salt), since).unwrap());
        }
        match loaded[..] {
            [first, second] => {
                prop_assert_eq!(first, second);
                self.models.push(Model { id: first, tokens, salt, drafts: Vec::new(), kept_from: None });
            }
            // Too few blocks in the second group.
            [first] => {
                self.planners[0].drop_sequence(first).unwrap();
                let other = self.planners[1].create_sequence().unwrap();
                prop_assert_eq!(other, first);
                self.planners[1].drop_sequence(other).unwrap();
            }
            _ => {}
        }
        Ok(())
    }

    pub fn check(&self) -> Done {
        for (at, planner) in self.planners.iter().enumerate() {
            let held: Vec<&HeldContent> = self.snapshots.iter().map(|(held, ..)| &held[at]).collect();
            prop_assert_eq!(planner.check_invariants(&held), Ok(()));
            for model in &self.models {
                prop_assert_eq!(planner.sequence_length(model.id) as usize, model.tokens.len());
            }
        }
        for model in &self.models {
            let slot = self.planners[1].state_slot(model.id).unwrap();
            let expected = (!model.tokens.is_empty()).then(|| hash(&model.tokens));
            prop_assert_eq!(slot.map(|slot| self.slots[&slot]), expected);
        }
        Ok(())
    }

    /// Drops everything: all blocks are free or cached then.
    pub fn end(mut self) -> Done {
        for model in std::mem::take(&mut self.models) {
            self.each(|planner| planner.drop_sequence(model.id).unwrap());
        }
        for (held, ..) in std::mem::take(&mut self.snapshots) {
            self.planners.iter_mut().zip(held).for_each(|(planner, held)| planner.release(held));
        }
        self.check()?;
        for planner in &self.planners {
            prop_assert_eq!(planner.pool_stats().active, 0);
        }
        Ok(())
    }
}
