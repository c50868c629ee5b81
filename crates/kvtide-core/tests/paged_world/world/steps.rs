//! Steps, layer by layer.

use kvtide_core::Code;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::super::model::Value;
use super::{Cache, Done, Share, Step, World};

impl<C: Cache> World<C> {
    pub(super) fn open_step(&mut self, shares: Vec<Share>, known: bool) -> Done {
        if self.step.is_some() {
            return Ok(());
        }
        let begun = self.cache.begin_step(&shares);
        if matches!(begun, Err(Code::OutOfBlocks)) {
            return Ok(());
        }
        let open = begun.map_err(|code| TestCaseError::fail(format!("a step is refused: {code:?}")))?;
        let written = vec![false; self.shape.layers as usize];
        let first = self.reserve_values();
        self.step = Some(Step { open, shares, known, written, first, left: Vec::new() });
        Ok(())
    }

    /// The tokens of an open step, with the model's values.
    pub(super) fn step_values(&self, step: &Step<C::Step>) -> Vec<Vec<Value>> {
        self.values_of(&step.shares, step.known, step.first)
    }

    pub(super) fn write_layer(&mut self, layer: u32) -> Done {
        let Some(mut step) = self.step.take() else { return Ok(()) };
        let values: Vec<Value> = self.step_values(&step).iter().map(|token| token[layer as usize]).collect();
        let is_stale = self.is_stale(&step);
        let expected = if is_stale { Err(Code::StaleStep) } else { Ok(()) };
        if !step.written[layer as usize] && layer == 1 {
            // Written twice: the second time counts.
            let wrong: Vec<Value> = values.iter().map(|value| value ^ 0x5555).collect();
            prop_assert_eq!(self.cache.write_layer(&mut step.open, layer, &wrong), expected);
        }
        prop_assert_eq!(self.cache.write_layer(&mut step.open, layer, &values), expected);
        step.written[layer as usize] |= !is_stale;
        self.step = Some(step);
        Ok(())
    }

    pub(super) fn end_step(&mut self, commit: bool) -> Done {
        let Some(mut step) = self.step.take() else { return Ok(()) };
        let tokens: Vec<u32> = step.shares.iter().flat_map(|share| share.1.clone()).collect();
        let ids = step.known.then_some(&tokens[..]);
        if commit {
            let missing = step.written.iter().any(|written| !written) && !tokens.is_empty();
            let done = self.cache.commit_step(&mut step.open, ids);
            if self.is_stale(&step) {
                prop_assert_eq!(done, Err(Code::StaleStep));
            } else if missing {
                prop_assert_eq!(done, Err(Code::StepIncomplete));
            } else {
                prop_assert_eq!(done, Ok(()));
                self.append_to_model(&step.shares, step.known, step.first);
                for (id, tokens) in &step.shares {
                    self.sequence(*id).add_chain(tokens.len());
                }
                self.note_all_committed();
                return Ok(());
            }
        }
        self.cache.drop_step(step.open);
        Ok(())
    }
}
