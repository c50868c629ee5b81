//! Steps, layer by layer.

use kvtide_core::paged::{Append, Writer};
use proptest::prelude::*;

use super::{Done, Step, World, flat};
use crate::memory::Value;

impl World {
    pub(super) fn open_step(&mut self, shares: Vec<(u64, Vec<u32>)>, known: bool) -> Done {
        if self.step.is_some() {
            return Ok(());
        }
        let (sequences, offsets, _) = flat(&shares);
        let append = Append { sequences: &sequences, offsets: Some(&offsets), parents: None, writer: Writer::Step };
        let targets = self.targets(&shares);
        self.check_one_go(self.planner.check_append(&append), &targets, self.planner.plan_append(&append))?;
        if !self.copy(&targets)? {
            return Ok(());
        }
        let plan = self.planner.plan_append(&append).unwrap();
        self.memory.open(&self.planner, &plan);
        self.planner.open_step(&plan).unwrap();
        let written = vec![false; self.shape.layers as usize];
        let first = self.reserve_values();
        self.step = Some(Step { plan, shares, known, written, first, left: Vec::new() });
        self.fill_tables()
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

    pub(super) fn write_layer(&mut self, layer: u32) -> Done {
        let Some(mut step) = self.step.take() else { return Ok(()) };
        let stale = step.is_stale(&self.sequences);
        prop_assert_eq!(self.planner.check_step(&step.plan).is_err(), stale);
        if !stale && !step.written[layer as usize] {
            let values = self.step_values(&step);
            let value = |layer: u32, token: u32| values[token as usize][layer as usize];
            self.memory.write_layers(&step.plan, layer..layer + 1, value);
            self.planner.mark_layer(&step.plan, layer).unwrap();
            step.written[layer as usize] = true;
        }
        self.step = Some(step);
        self.fill_tables()?;
        if stale { Ok(()) } else { self.check_slots(layer) }
    }

    pub(super) fn end_step(&mut self, commit: bool) -> Done {
        let Some(step) = self.step.take() else { return Ok(()) };
        let stale = step.is_stale(&self.sequences);
        if stale || !commit || step.written.iter().any(|written| !written) {
            self.planner.undo_step(&step.plan).unwrap();
            return Ok(());
        }
        let (_, _, tokens) = flat(&step.shares);
        self.memory.seal_filled(&self.planner, &step.plan);
        self.planner.close_step(&step.plan, step.known.then_some(&tokens)).unwrap();
        self.append_to_model(&step.shares, step.known, Some(step.first));
        for (id, tokens) in &step.shares {
            self.sequences.get_mut(id).unwrap().add_chain(tokens.len());
        }
        self.note_all_committed();
        Ok(())
    }
}
