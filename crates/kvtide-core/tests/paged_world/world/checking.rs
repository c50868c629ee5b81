//! What must hold after each call, and at the end.

use kvtide_core::Code;
use kvtide_core::paged::HeldContent;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::{Done, World};
use crate::memory::Value;

impl World {
    /// What every sequence sees is what the model has, and the bookkeeping holds.
    pub fn check(&mut self) -> Done {
        let held: Vec<&HeldContent> = self.snapshots.iter().map(|(held, _)| held).collect();
        self.planner.check_invariants(&held).map_err(TestCaseError::fail)?;
        prop_assert_eq!(self.planner.sequence_ids(), self.sequences.keys().copied().collect::<Vec<_>>());
        for (&id, of) in &self.sequences {
            prop_assert_eq!(self.planner.sequence_length(id) as usize, of.values.len());
            prop_assert_eq!(self.planner.committed_length(id) as usize, of.committed());
            let gap = self.planner.gap(id).unwrap();
            if let Some((tokens, sinks)) = self.shape.window {
                prop_assert!(gap.is_empty() || (gap.start >= sinks && gap.end + tokens <= of.values.len() as u32 + 1));
            }
            for layer in 0..self.shape.layers {
                for (position, values) in (0..).zip(&of.values).filter(|(position, _)| !gap.contains(position)) {
                    let slot = self.planner.locate(id, layer, position).ok();
                    let staged = |block| self.planner.staged(block, layer);
                    let value = slot.map(|slot| self.memory.read(staged(slot.block), slot.block, layer, slot.index));
                    prop_assert_eq!(value, values[layer as usize], "position {} of {}", position, id);
                }
                if !self.is_stepping(id) {
                    let expected: Vec<Value> = (0..)
                        .zip(&of.values)
                        .filter(|(position, _)| !gap.contains(position))
                        .map(|(_, values)| values[layer as usize].unwrap_or(0))
                        .collect();
                    prop_assert_eq!(
                        self.memory.read_all(&mut self.planner, id, layer),
                        expected,
                        "layer {} of {}",
                        layer,
                        id
                    );
                    let beyond = self.planner.locate(id, layer, of.values.len() as u32);
                    prop_assert_eq!(beyond.err().map(|error| error.code()), Some(Code::PositionOutOfRange));
                }
            }
        }
        Ok(())
    }

    /// After everything is dropped, everything is free.
    pub fn end(mut self) -> Done {
        if let Some(step) = self.step.take() {
            self.planner.undo_step(&step.plan).unwrap();
        }
        self.check()?;
        for id in std::mem::take(&mut self.sequences).into_keys() {
            self.planner.drop_sequence(id).unwrap();
        }
        for (held, _) in std::mem::take(&mut self.snapshots) {
            self.planner.release(held);
        }
        self.check()?;
        let stats = self.planner.pool_stats();
        prop_assert_eq!((stats.active, stats.free + stats.cached), (0, self.shape.capacity));
        self.planner.forget_prefixes();
        self.check()?;
        prop_assert_eq!(self.planner.pool_stats().free, self.shape.capacity);
        prop_assert_eq!(self.planner.staged_count(), 0);
        Ok(())
    }
}
