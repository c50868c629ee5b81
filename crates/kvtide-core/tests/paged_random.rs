//! Random calls on the paged planner against a map of (sequence, layer, position).
//!
//! A slab is played by a map of (block, layer, slot) that nobody ever clears: if the planner leads a read to a slot that
//! the sequence has not written itself, the number found there is another one, or none.

mod support;

use std::collections::{BTreeMap, HashMap};

use kvtide_core::Error;
use kvtide_core::paged::{PagedPlanner, SlotPlan};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

/// A call. `u64` is a sequence, known or not; then layer, then position or tokens, in range or not.
#[derive(Clone, Debug)]
enum Call {
    Create,
    Drop(u64),
    Ensure(u64, u32),
    Write(u64, u32, u32),
    /// Plans a write, and leaves it.
    Plan(u64, u32, u32),
    /// Commits the plan that was left, whatever has happened since.
    CommitPlan,
    Read(u64, u32, u32),
}

#[derive(Clone, Copy, Debug)]
struct Shape {
    capacity: u32,
    block_size: u32,
    layers: u32,
}

/// The naive cache: sequences with a number of blocks, and a value per token.
struct Model {
    shape: Shape,
    blocks: BTreeMap<u64, u32>,
    values: HashMap<(u64, u32, u32), u32>,
    created: u64,
}

impl Model {
    fn free(&self) -> u32 {
        self.shape.capacity - self.blocks.values().sum::<u32>()
    }

    fn length(&self, sequence: u64) -> u32 {
        let of_sequence = self.values.keys().filter(|key| key.0 == sequence);
        of_sequence.map(|key| key.2 + 1).max().unwrap_or(0)
    }

    /// Blocks missing for so many tokens, or the refusal.
    fn missing(&self, sequence: u64, tokens: u32) -> Result<u32, Error> {
        let held = self.blocks.get(&sequence).ok_or(Error::SequenceNotFound { sequence })?;
        let missing = tokens.div_ceil(self.shape.block_size).saturating_sub(*held);
        match missing > self.free() {
            true => Err(Error::OutOfBlocks { needed: missing.into(), free: self.free().into() }),
            false => Ok(missing),
        }
    }

    fn layer(&self, layer: u32) -> Result<(), Error> {
        let layers = self.shape.layers;
        if layer < layers { Ok(()) } else { Err(Error::argument("layer", layer, format!("below {layers}"))) }
    }

    fn read(&self, sequence: u64, layer: u32, position: u32) -> Result<u32, Error> {
        self.layer(layer)?;
        if !self.blocks.contains_key(&sequence) {
            return Err(Error::SequenceNotFound { sequence });
        }
        let (length, place) = (self.length(sequence).into(), u64::from(position));
        let value = self.values.get(&(sequence, layer, position)).copied();
        value.ok_or(Error::PositionOutOfRange { sequence, layer, position: place, length })
    }
}

/// Both caches, the slab, and the value that the next write brings.
struct Pair {
    planner: PagedPlanner,
    model: Model,
    slab: HashMap<(u32, u32, u32), u32>,
    left: Option<SlotPlan>,
    next_value: u32,
}

impl Pair {
    fn new(shape: Shape) -> Self {
        let model = Model { shape, blocks: BTreeMap::new(), values: HashMap::new(), created: 0 };
        let planner = PagedPlanner::new(shape.capacity, shape.block_size, shape.layers).unwrap();
        Pair { planner, model, slab: HashMap::new(), left: None, next_value: 0 }
    }

    fn call(&mut self, call: &Call) -> Result<(), TestCaseError> {
        match *call {
            Call::Create => {
                prop_assert_eq!(self.planner.create_sequence(), Ok(self.model.created));
                self.model.blocks.insert(self.model.created, 0);
                self.model.created += 1;
            }
            Call::Drop(sequence) => {
                let known = self.model.blocks.remove(&sequence).ok_or(Error::SequenceNotFound { sequence });
                prop_assert_eq!(self.planner.drop_sequence(sequence), known.map(|_| ()));
                self.model.values.retain(|key, _| key.0 != sequence);
            }
            Call::Ensure(sequence, tokens) => {
                let missing = self.model.missing(sequence, tokens);
                let ensured = self.planner.ensure_capacity(sequence, tokens);
                prop_assert_eq!(ensured.as_ref(), missing.as_ref().map(|_| &()));
                if let Ok(missing) = missing {
                    *self.model.blocks.get_mut(&sequence).unwrap() += missing;
                }
            }
            Call::Write(sequence, layer, position) => {
                if let Some(plan) = self.plan(sequence, layer, position)? {
                    self.move_bytes(&plan);
                    prop_assert_eq!(self.planner.commit_write(&plan), Ok(()));
                    self.written(&plan);
                }
            }
            Call::Plan(sequence, layer, position) => self.left = self.plan(sequence, layer, position)?,
            Call::CommitPlan => self.commit_left()?,
            Call::Read(sequence, layer, position) => self.read(sequence, layer, position)?,
        }
        Ok(())
    }

    fn plan(&self, sequence: u64, layer: u32, position: u32) -> Result<Option<SlotPlan>, TestCaseError> {
        let expected = self.model.layer(layer).and_then(|()| self.model.missing(sequence, position + 1));
        let plan = self.planner.plan_write(sequence, layer, position);
        prop_assert_eq!(plan.as_ref().map(|plan| plan.new_blocks), expected.as_ref().copied());
        Ok(plan.ok())
    }

    /// A plan from before is carried out as a plan from now, or refused; the slab is left alone until it is known which.
    fn commit_left(&mut self) -> Result<(), TestCaseError> {
        let Some(plan) = self.left.take() else { return Ok(()) };
        let now = self.planner.plan_write(plan.sequence, plan.layer, plan.position);
        let committed = self.planner.commit_write(&plan);
        prop_assert_eq!(committed.is_ok(), now == Ok(plan), "{:?} of {:?}, now {:?}", committed, plan, now);
        if committed.is_ok() {
            self.move_bytes(&plan);
            self.written(&plan);
        }
        Ok(())
    }

    fn move_bytes(&mut self, plan: &SlotPlan) {
        self.slab.insert((plan.slot.block, plan.layer, plan.slot.slot), self.next_value);
    }

    fn written(&mut self, plan: &SlotPlan) {
        *self.model.blocks.get_mut(&plan.sequence).unwrap() += plan.new_blocks;
        self.model.values.insert((plan.sequence, plan.layer, plan.position), self.next_value);
        self.next_value += 1;
    }

    fn read(&self, sequence: u64, layer: u32, position: u32) -> Result<(), TestCaseError> {
        let slot = self.planner.locate(sequence, layer, position);
        let value = slot.map(|slot| self.slab[&(slot.block, layer, slot.slot)]);
        prop_assert_eq!(value, self.model.read(sequence, layer, position));
        Ok(())
    }

    fn check(&self) -> Result<(), TestCaseError> {
        self.planner.check_invariants().map_err(TestCaseError::fail)?;
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

    /// Reads every slot of every sequence, and one beyond.
    fn check_content(&self) -> Result<(), TestCaseError> {
        for (&sequence, blocks) in &self.model.blocks {
            for layer in 0..self.model.shape.layers {
                for position in 0..=blocks * self.model.shape.block_size {
                    self.read(sequence, layer, position)?;
                }
            }
        }
        Ok(())
    }
}

fn planner_follows_the_model((shape, calls): (Shape, Vec<Call>)) -> Result<(), TestCaseError> {
    let mut pair = Pair::new(shape);
    for call in &calls {
        pair.call(call)?;
        pair.check()?;
    }
    pair.check_content()
}

fn shape() -> impl Strategy<Value = Shape> {
    (0..8u32, 1..5u32, 1..4u32).prop_map(|(capacity, block_size, layers)| Shape { capacity, block_size, layers })
}

fn call() -> impl Strategy<Value = Call> {
    let place = || (0..6u64, 0..4u32, 0..12u32);
    prop_oneof![
        4 => Just(Call::Create),
        2 => (0..6u64).prop_map(Call::Drop),
        2 => (0..6u64, 0..20u32).prop_map(|(sequence, tokens)| Call::Ensure(sequence, tokens)),
        8 => place().prop_map(|(sequence, layer, position)| Call::Write(sequence, layer, position)),
        2 => place().prop_map(|(sequence, layer, position)| Call::Plan(sequence, layer, position)),
        2 => Just(Call::CommitPlan),
        4 => place().prop_map(|(sequence, layer, position)| Call::Read(sequence, layer, position)),
    ]
}

#[test]
fn random_calls_against_a_map() {
    let calls = (shape(), prop::collection::vec(call(), 0..32));
    support::run("planner", 20_000, calls, planner_follows_the_model);
}
