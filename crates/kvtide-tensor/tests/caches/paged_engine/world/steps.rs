//! Steps, layer by layer.

use kvtide_core::Code;
use kvtide_tensor::StepTokens;
use proptest::prelude::*;

use super::{Done, Step, World, flat, ran_out};
use crate::outcome::code;
use crate::paged_engine::memory::Value;

impl World {
    pub(super) fn open_step(&mut self, shares: Vec<(u64, Vec<u32>)>, known: bool) -> Done {
        if self.step.is_some() {
            return Ok(());
        }
        let (sequences, offsets, _) = flat(&shares);
        let tokens = StepTokens { sequences: &sequences, offsets: Some(&offsets), parents: None };
        let open = self.cache.begin_step(tokens);
        if ran_out(&open)? {
            return Ok(());
        }
        let written = vec![false; self.shape.layers as usize];
        let first = self.reserve_values();
        self.step = Some(Step { open: open?, shares, known, written, first, left: Vec::new() });
        Ok(())
    }

    /// What an open step brings, as the model would have it.
    pub(super) fn step_values(&self, step: &Step) -> Vec<Vec<Value>> {
        let mut values = Vec::new();
        for (id, tokens) in &step.shares {
            let done = values.len() as u32;
            // What is dropped is written nowhere.
            let mut of = self.sequences.get(id).cloned().unwrap_or_default();
            let other = |layer, at| step.first + layer * 200 + done + at;
            values.extend(of.append(tokens, step.known, self.shape.layers, other));
        }
        values
    }

    pub(super) fn is_stale(&self, step: &Step) -> bool {
        !step.left.is_empty() || step.shares.iter().any(|(id, _)| !self.sequences.contains_key(id))
    }

    pub(super) fn write_layer(&mut self, layer: u32) -> Done {
        let Some(mut step) = self.step.take() else { return Ok(()) };
        let values = self.step_values(&step);
        let mut of_layer: Vec<Value> = values.iter().map(|token| token[layer as usize]).collect();
        if !step.written[layer as usize] && layer == 1 {
            // Written twice: the second time counts.
            let wrong: Vec<Value> = of_layer.iter().map(|value| value ^ 0x5555).collect();
            let fed = self.fed(&[wrong], false);
            let done = self.cache.write_layer(&mut step.open, layer, fed.host(0), fed.host(1));
            prop_assert_eq!(done.is_err(), self.is_stale(&step));
        }
        let fed = self.fed(&[std::mem::take(&mut of_layer)], false);
        let done = self.cache.write_layer(&mut step.open, layer, fed.host(0), fed.host(1));
        prop_assert_eq!(code(done), if self.is_stale(&step) { Err(Code::StaleStep) } else { Ok(()) });
        step.written[layer as usize] |= !self.is_stale(&step);
        self.step = Some(step);
        Ok(())
    }

    pub(super) fn end_step(&mut self, commit: bool) -> Done {
        let Some(mut step) = self.step.take() else { return Ok(()) };
        let (_, _, tokens) = flat(&step.shares);
        let ids = step.known.then_some(&tokens[..]);
        if commit {
            let missing = step.written.iter().any(|written| !written) && !tokens.is_empty();
            let done = self.cache.commit_step(&mut step.open, ids);
            if self.is_stale(&step) {
                prop_assert_eq!(code(done), Err(Code::StaleStep));
            } else if missing {
                prop_assert_eq!(code(done), Err(Code::StepIncomplete));
            } else {
                done?;
                prop_assert_eq!(code(self.cache.commit_step(&mut step.open, ids)), Err(Code::TransactionClosed));
                self.append_to_model(&step.shares, step.known, step.first);
                for (id, tokens) in &step.shares {
                    self.sequences.get_mut(id).expect("a sequence of the model").add_chain(tokens.len());
                }
                self.note_all_committed();
                return Ok(());
            }
        }
        if tokens.len() % 2 == 0 {
            self.cache.undo_step(&mut step.open)?;
        }
        // Where it is dropped open, what looks at the cache next is to find nothing of it.
        drop(step);
        Ok(())
    }
}
