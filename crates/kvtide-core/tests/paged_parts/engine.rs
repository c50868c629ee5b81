//! A small engine on reference counts and the prefix index: sequences that share blocks and reuse the prefixes of
//! others.
//!
//! After every call, both check themselves, the counts equal those of the sequences, and the prefixes found equal those
//! of the naive model. With keys of few bits, the index may miss cached blocks, but must never return wrong ones.

use std::collections::HashSet;

use kvtide_core::paged::parts::{Blocks, PrefixIndex, RankChain, Release};
use kvtide_core::paged::{BlockKey, MissReason};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::calls::{self, Call, Prompt};
use super::model::{Model, Prefix, extras, prefix, root};
use super::{Done, support};

#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub capacity: u32,
    pub block_size: u32,
    pub key_bits: u32,
}

#[derive(Clone)]
struct Sequence {
    prompt: Prompt,
    blocks: Vec<u32>,
    /// The key of each full block.
    keys: Vec<BlockKey>,
}

struct Engine {
    shape: Shape,
    blocks: Blocks,
    index: PrefixIndex,
    sequences: Vec<Sequence>,
    model: Model,
    /// A block and the one before it, of one sequence when it was filled.
    behind: HashSet<(u32, u32)>,
    now: u64,
}

fn fail(error: impl std::fmt::Display) -> TestCaseError {
    TestCaseError::fail(error.to_string())
}

impl Engine {
    fn new(shape: Shape) -> Self {
        let index = PrefixIndex::new(shape.capacity, shape.block_size).unwrap().with_key_bits(shape.key_bits);
        let (blocks, model) = (Blocks::new(shape.capacity).unwrap(), Model::default());
        Engine { shape, blocks, index, sequences: Vec::new(), model, behind: HashSet::new(), now: 0 }
    }

    fn call(&mut self, call: Call) -> Done {
        match call {
            Call::Start(prompt) => self.start(prompt)?,
            Call::Append(sequence, token) if sequence < self.sequences.len() => {
                let mut sequence = self.sequences.swap_remove(sequence);
                self.push(&mut sequence, token)?;
                self.sequences.push(sequence);
            }
            Call::Fork(sequence) if sequence < self.sequences.len() => {
                let mut fork = self.sequences[sequence].clone();
                fork.blocks.truncate(fork.keys.len());
                fork.prompt.tokens.truncate(fork.keys.len() * self.shape.block_size as usize);
                fork.blocks.iter().for_each(|&block| self.blocks.retain(block));
                self.sequences.push(fork);
            }
            Call::Drop(sequence, keep) if sequence < self.sequences.len() => {
                let sequence = self.sequences.swap_remove(sequence);
                self.let_go(&sequence, keep);
            }
            Call::Priority(sequence, priority, until) if sequence < self.sequences.len() => {
                for block in self.sequences[sequence].blocks.clone() {
                    self.blocks.set_priority(block, priority, until).map_err(fail)?;
                    // Lowering a head while its tail is cached evicts the head first, as requested.
                    self.behind.retain(|behind| behind.1 != block || !self.blocks.is_cached(behind.0));
                }
            }
            Call::Advance(by) => {
                self.now += by;
                self.blocks.advance(self.now);
            }
            Call::Forget(place) => {
                let cached = self.blocks.upcoming().filter(|taken| taken.evicted).nth(place);
                if let Some(taken) = cached {
                    prop_assert!(self.index.remove(taken.block));
                    self.blocks.forget(taken.block);
                    self.gone(taken.block)?;
                }
            }
            Call::Explain(prompt) => self.explain(&prompt)?,
            Call::Clear => {
                let cached: Vec<_> = self.blocks.upcoming().filter(|taken| taken.evicted).collect();
                self.index.clear();
                cached.iter().for_each(|taken| self.blocks.forget(taken.block));
                self.model = Model::default();
                self.behind.clear();
            }
            _ => {}
        }
        Ok(())
    }

    fn start(&mut self, prompt: Prompt) -> Done {
        let found = self.find(&prompt)?;
        found.blocks.iter().for_each(|&block| self.blocks.retain(block));
        let whole = found.blocks.len() * self.shape.block_size as usize;
        let start = Prompt { tokens: prompt.tokens[..whole].to_vec(), ..prompt.clone() };
        let mut sequence = Sequence { prompt: start, blocks: found.blocks, keys: found.keys };
        for &token in &prompt.tokens[whole..] {
            if !self.push(&mut sequence, token)? {
                self.let_go(&sequence, true);
                return Ok(());
            }
        }
        self.sequences.push(sequence);
        Ok(())
    }

    /// Compares the prefix found for a prompt with the model.
    fn find(&self, prompt: &Prompt) -> Result<kvtide_core::paged::parts::FoundPrefix, TestCaseError> {
        let (root, extras, size) = (root(prompt.salt), extras(prompt), self.shape.block_size);
        let found = self.index.find_prefix(&root, &prompt.tokens, &extras).map_err(fail)?;
        let expected = self.model.longest(prompt, size);
        prop_assert_eq!(&found.blocks[..], &expected[..found.blocks.len()]);
        prop_assert_eq!(found.blocks.len(), expected.len(), "with equal keys");
        let rest = self.index.find_rest(&root, &prompt.tokens, &extras, &found.keys);
        let expected = self.model.longest_rest(prompt, found.blocks.len() * size as usize, size);
        prop_assert_eq!(rest.map_or(0, |rest| rest.1), expected);
        Ok(found)
    }

    /// One token more; false when there is no block for it.
    fn push(&mut self, sequence: &mut Sequence, token: u32) -> Result<bool, TestCaseError> {
        let (size, position) = (self.shape.block_size, sequence.prompt.tokens.len() as u32);
        if position.is_multiple_of(size) {
            self.blocks.reserve(1).map_err(fail)?;
            let Some(taken) = self.blocks.take() else { return Ok(false) };
            prop_assert_eq!(taken.evicted, self.index.evict(taken.block));
            self.model.evict(taken.block);
            self.gone(taken.block)?;
            self.index.reserve(taken.block).map_err(fail)?;
            sequence.blocks.push(taken.block);
        }
        let block = *sequence.blocks.last().unwrap();
        self.index.set_tokens(block, position % size, &[token]);
        sequence.prompt.tokens.push(token);
        if (position + 1).is_multiple_of(size) {
            self.full(sequence, block, position + 1 - size)?;
        }
        Ok(true)
    }

    fn full(&mut self, sequence: &mut Sequence, block: u32, start: u32) -> Done {
        let parent = sequence.keys.last().copied().unwrap_or(root(sequence.prompt.salt));
        let extras = extras(&sequence.prompt);
        let key = parent.child(self.index.tokens(block), start, &extras);
        let prefix = prefix(&sequence.prompt, sequence.prompt.tokens.len());
        let inserted = self.index.insert(block, &key, &parent, start, &extras);
        prop_assert_eq!(self.index.key(block), Some(&key));
        let known = self.model.found.contains_key(&prefix);
        prop_assert!(!inserted || !known, "found twice");
        prop_assert!(inserted || known || self.shape.key_bits < 256, "not found");
        if inserted {
            self.model.found.insert(prefix, block);
        } else {
            self.model.waiting.push((prefix, block));
        }
        sequence.keys.push(key);
        if let [.., before, last] = sequence.blocks[..] {
            self.behind.insert((last, before));
        }
        Ok(())
    }

    fn let_go(&mut self, sequence: &Sequence, keep: bool) {
        let mut chain = RankChain::default();
        for (depth, &block) in sequence.blocks.iter().enumerate().rev() {
            let cached = keep && self.index.is_indexed(block);
            if self.blocks.release(block, Release { cached, depth: depth as u32 }, &mut chain) == 0 && !cached {
                self.index.remove(block);
                self.model.remove(block);
                self.behind.retain(|behind| behind.0 != block && behind.1 != block);
            }
        }
    }

    /// A block's content is gone from the index.
    fn gone(&mut self, block: u32) -> Done {
        self.model.remove(block);
        prop_assert!(!self.index.is_indexed(block) && self.index.key(block).is_none());
        self.behind.retain(|behind| behind.0 != block && behind.1 != block);
        Ok(())
    }

    fn explain(&self, prompt: &Prompt) -> Done {
        let found = self.find(prompt)?.blocks.len() as u32;
        let size = self.shape.block_size;
        let explained = self.index.explain(&root(prompt.salt), &prompt.tokens, &extras(prompt)).map_err(fail)?;
        prop_assert_eq!(explained.matched, found * size);
        let whole = prompt.tokens.len().saturating_sub(1) as u32 / size;
        prop_assert_eq!(explained.missing.map(|missing| missing.0), (found < whole).then_some(found));
        if let Some((block, reason)) = explained.missing {
            let (other, end) = (Prompt { salt: 1 - prompt.salt, ..prompt.clone() }, ((block + 1) * size) as usize);
            let (before, own) = (prefix(prompt, end - size as usize), prefix(prompt, end));
            let has_other_extras = |(salt, tokens, extras): &Prefix| {
                let common: Vec<_> = extras.iter().filter(|of| (of.start as usize) < end - size as usize).collect();
                (*salt, tokens) == (own.0, &own.1) && *extras != own.2 && common.into_iter().eq(&before.2)
            };
            let there =
                self.model.found.contains_key(&prefix(&other, end)) || self.model.found.keys().any(has_other_extras);
            match reason {
                MissReason::Evicted => prop_assert!(self.model.evicted.contains(&prefix(prompt, end))),
                MissReason::OtherSalt => prop_assert!(there),
                MissReason::NeverSeen => prop_assert!(!there),
                // An index knows no sequences and no windows.
                MissReason::NotCommitted | MissReason::WindowGone | MissReason::NoStateHere => {
                    prop_assert!(false, "{:?}", reason)
                }
            }
        }
        Ok(())
    }

    fn check(&self) -> Done {
        self.blocks.check_invariants().map_err(fail)?;
        self.index.check_invariants().map_err(fail)?;
        prop_assert_eq!(self.index.len() as usize, self.model.found.len());
        let mut counts = vec![0; self.shape.capacity as usize];
        self.sequences.iter().flat_map(|sequence| &sequence.blocks).for_each(|&block| counts[block as usize] += 1);
        for block in 0..self.shape.capacity {
            prop_assert_eq!(self.blocks.count(block), counts[block as usize]);
            prop_assert_eq!(self.index.is_indexed(block), self.model.content(block).is_some());
            prop_assert!(!self.blocks.is_cached(block) || self.index.is_indexed(block));
        }
        let order: Vec<_> = self.blocks.upcoming().filter(|taken| taken.evicted).map(|taken| taken.block).collect();
        let place = |block| order.iter().position(|&evicted| evicted == block);
        for &(tail, head) in &self.behind {
            if let (Some(tail_place), Some(head_place)) = (place(tail), place(head)) {
                prop_assert!(tail_place < head_place, "{} is evicted before {} behind it", head, tail);
            }
        }
        Ok(())
    }
}

fn engine_follows_the_model((shape, calls): (Shape, Vec<Call>)) -> Done {
    let mut engine = Engine::new(shape);
    for call in calls {
        engine.call(call)?;
        engine.check()?;
    }
    while let Some(sequence) = engine.sequences.pop() {
        engine.let_go(&sequence, true);
    }
    engine.check()?;
    prop_assert_eq!(engine.blocks.available(), shape.capacity);
    Ok(())
}

#[test]
fn random_sequences_against_maps() {
    let calls = (calls::shape(), prop::collection::vec(calls::call(), 0..40));
    support::run("engine", 20_000, calls, engine_follows_the_model);
}
