//! Compares random calls on the paged planner with a map of (sequence, layer, position).
//!
//! Maps that are never cleared simulate the memory: if the planner directs a read to a slot that the sequence has not
//! written itself, the number in that slot is wrong.

mod calls;
mod memory;
mod model;
#[path = "../support/mod.rs"]
mod support;

use kvtide_core::Error;
use kvtide_core::paged::{Append, PagedPlanner, WritePlan, Writer};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use memory::{Memory, Value};
use model::{Model, Shape};

type Done = Result<(), TestCaseError>;

/// A call. `u64` is a sequence, known or not; then layer, position and tokens, in range or not.
#[derive(Clone, Debug)]
enum Call {
    Create,
    Drop(u64),
    Ensure(u64, u32),
    Write(u64, u32, u32, u32),
    /// Each sequence with its number of tokens.
    Append(Vec<(u64, u32)>),
    /// Plans a write, and leaves it.
    Plan(u64, u32, u32, u32),
    /// Commits the plan that was left, whatever has happened since.
    CommitPlan,
    Read(u64, u32, u32),
    ReadAll(u64, u32),
}

/// Both caches, the memory, and the first value that the next write brings.
struct Pair {
    planner: PagedPlanner,
    model: Model,
    memory: Memory,
    /// A plan, what it was to do, and whether nothing has changed since.
    left: Option<(WritePlan, [u32; 3], u64, bool)>,
    next: Value,
}

/// More tokens than any call of these tests brings.
const CALL: Value = 1000;

impl Pair {
    fn new(shape: Shape) -> Self {
        let model = Model::new(shape);
        let planner = PagedPlanner::new(shape.capacity, shape.block_size, shape.layers).unwrap();
        let planner = if shape.low_bit { planner.staging_pages() } else { planner };
        Pair { planner, model, memory: Memory::default(), left: None, next: 1 }
    }

    fn call(&mut self, call: &Call) -> Done {
        match *call {
            Call::Create => {
                prop_assert_eq!(self.planner.create_sequence(), Ok(self.model.created));
                self.model.blocks.insert(self.model.created, 0);
                self.model.created += 1;
            }
            Call::Drop(sequence) => {
                let known = self.model.blocks.remove(&sequence).ok_or(Error::SequenceNotFound { sequence });
                self.changes(known.is_ok());
                prop_assert_eq!(self.planner.drop_sequence(sequence), known.map(|_| ()));
                self.model.values.retain(|key, _| key.0 != sequence);
            }
            Call::Ensure(sequence, tokens) => {
                let missing = self.model.missing(&[(sequence, tokens)]);
                self.changes(missing.is_ok());
                let ensured = self.planner.ensure_capacity(&[(sequence, tokens)]);
                prop_assert_eq!(ensured.as_ref(), missing.as_ref().map(|_| &()));
                if let Ok(missing) = missing {
                    *self.model.blocks.get_mut(&sequence).unwrap() += missing;
                }
            }
            Call::Write(sequence, layer, position, tokens) => {
                if let Some(plan) = self.plan(sequence, layer, position, tokens)? {
                    self.carry_out(&plan)?;
                    let next = self.next - CALL;
                    self.model.write(sequence, layer, position, tokens, |token| next + token);
                }
            }
            Call::Append(ref shares) => self.append(shares)?,
            Call::Plan(sequence, layer, position, tokens) => {
                let plan = self.plan(sequence, layer, position, tokens)?;
                self.left = plan.map(|plan| (plan, [layer, position, tokens], sequence, true));
            }
            Call::CommitPlan => self.commit_left()?,
            Call::Read(sequence, layer, position) => self.read(sequence, layer, position)?,
            Call::ReadAll(sequence, layer) => self.read_all(sequence, layer)?,
        }
        Ok(())
    }

    /// Notes that a plan that was left is out of date, if this call does something.
    fn changes(&mut self, done: bool) {
        if let Some(left) = &mut self.left {
            left.3 &= !done;
        }
    }

    fn plan(&self, sequence: u64, layer: u32, position: u32, tokens: u32) -> Result<Option<WritePlan>, TestCaseError> {
        let end = if tokens == 0 { 0 } else { position + tokens };
        let expected = self.model.layer(layer).and_then(|()| self.model.missing(&[(sequence, end)]));
        let plan = self.planner.plan_tokens(sequence, layer, position, tokens);
        prop_assert_eq!(plan.as_ref().map(WritePlan::new_blocks), expected.as_ref().copied());
        Ok(plan.ok())
    }

    fn append(&mut self, shares: &[(u64, u32)]) -> Done {
        let sequences: Vec<u64> = shares.iter().map(|share| share.0).collect();
        let mut offsets = vec![0];
        offsets.extend(shares.iter().scan(0, |sum, share| {
            *sum += share.1;
            Some(*sum)
        }));
        let lengths: Vec<u32> = sequences.iter().map(|&sequence| self.model.length(sequence)).collect();
        let end = |(&(sequence, tokens), &length): (&(u64, u32), &u32)| {
            (sequence, if tokens == 0 { 0 } else { length + tokens })
        };
        let ends: Vec<_> = shares.iter().zip(&lengths).map(end).collect();
        let ones = shares.iter().all(|share| share.1 == 1);
        let plan = self.planner.plan_append(&Append {
            sequences: &sequences,
            offsets: (!ones).then_some(&offsets[..]),
            parents: None,
            writer: Writer::Direct,
        });
        let twice = sequences.iter().enumerate().find(|(at, sequence)| sequences[..*at].contains(sequence));
        if twice.is_some() {
            prop_assert_eq!(plan.map_err(|error| error.code()).err(), Some(kvtide_core::Code::InvalidArgument));
            return Ok(());
        }
        let expected = self.model.missing(&ends);
        prop_assert_eq!(plan.as_ref().map(WritePlan::new_blocks), expected.as_ref().copied());
        let Ok(plan) = plan else { return Ok(()) };
        prop_assert_eq!(plan.tokens(), *offsets.last().unwrap());
        self.carry_out(&plan)?;
        for layer in 0..self.model.shape.layers {
            for ((&(sequence, tokens), &length), &offset) in shares.iter().zip(&lengths).zip(&offsets) {
                let first = self.next - CALL + layer * 100 + offset;
                self.model.write(sequence, layer, length, tokens, |token| first + token);
            }
        }
        Ok(())
    }

    fn carry_out(&mut self, plan: &WritePlan) -> Done {
        prop_assert_eq!(self.planner.reserve(plan), Ok(()));
        let (next, first) = (self.next, plan.layers().start);
        let value = |layer: u32, token: u32| next + (layer - first) * 100 + token;
        self.memory.write(&self.planner, plan, value);
        prop_assert_eq!(self.planner.commit(plan, None), Ok(()));
        self.next += CALL;
        self.changes(true);
        Ok(())
    }

    /// A plan from before is carried out as a plan from now, or refused; the memory is left alone until it is known which.
    fn commit_left(&mut self) -> Done {
        let Some((plan, [layer, position, tokens], sequence, current)) = self.left.take() else { return Ok(()) };
        if !current {
            prop_assert!(self.planner.commit(&plan, None).is_err(), "a plan that is out of date was carried out");
            return Ok(());
        }
        self.carry_out(&plan)?;
        let next = self.next - CALL;
        self.model.write(sequence, layer, position, tokens, |token| next + token);
        Ok(())
    }

    fn read(&self, sequence: u64, layer: u32, position: u32) -> Done {
        let slot = self.planner.locate(sequence, layer, position);
        let value =
            slot.map(|slot| self.memory.read(self.planner.staged(slot.block, layer), slot.block, layer, slot.index));
        prop_assert_eq!(value, self.model.read(sequence, layer, position));
        Ok(())
    }

    fn read_all(&mut self, sequence: u64, layer: u32) -> Done {
        if layer >= self.model.shape.layers || !self.model.blocks.contains_key(&sequence) {
            prop_assert!(self.planner.pages(sequence, layer).is_err());
            return Ok(());
        }
        let values = self.memory.read_all(&mut self.planner, sequence, layer);
        let expected: Vec<_> = (0..self.model.length(sequence))
            .map(|position| self.model.values.get(&(sequence, layer, position)).copied().unwrap_or(0))
            .collect();
        prop_assert_eq!(values, expected);
        Ok(())
    }

    fn check(&self) -> Done {
        self.planner.check_invariants(&[]).map_err(TestCaseError::fail)?;
        let (planner, model) = (&self.planner, &self.model);
        prop_assert_eq!(planner.sequence_ids(), model.blocks.keys().copied().collect::<Vec<_>>());
        prop_assert_eq!((planner.free_count(), planner.total_count()), (model.free(), model.shape.capacity));
        for sequence in 0..=model.created {
            let blocks = model.blocks.get(&sequence).copied().unwrap_or(0);
            prop_assert_eq!(planner.sequence_capacity(sequence), u64::from(blocks * model.shape.block_size));
            prop_assert_eq!(planner.sequence_length(sequence), model.length(sequence));
        }
        Ok(())
    }

    /// Reads every slot of every sequence, and one beyond; then each layer as a whole.
    fn check_content(&mut self) -> Done {
        for (sequence, blocks) in self.model.blocks.clone() {
            for layer in 0..self.model.shape.layers {
                for position in 0..=blocks * self.model.shape.block_size {
                    self.read(sequence, layer, position)?;
                }
                self.read_all(sequence, layer)?;
            }
        }
        Ok(())
    }
}

fn planner_follows_the_model((shape, calls): (Shape, Vec<Call>)) -> Done {
    let mut pair = Pair::new(shape);
    for call in &calls {
        pair.call(call)?;
        pair.check()?;
    }
    pair.check_content()
}

#[test]
fn random_calls_against_a_map() {
    let calls = (calls::shape(), prop::collection::vec(calls::call(), 0..32));
    support::run("planner", 20_000, calls, planner_follows_the_model);
}
