//! Steps of a trace, and their ends.

use kvtide_core::Code;
use kvtide_tensor::StepTokens;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use crate::model::Id;
use crate::random::End;
use crate::subject::{code, own_layers, write};
use crate::world::World;

impl World {
    pub(crate) fn step(
        &mut self,
        id: u64,
        tokens: u32,
        tree: Option<&[u32]>,
        layers: usize,
        end: End,
    ) -> Result<(), TestCaseError> {
        let ids: Vec<Id> = (self.next..self.next + Id::from(tokens)).collect();
        self.next += Id::from(tokens);
        let of = &self.sequences[&id];
        // Nodes of a step follow any node of its transaction.
        let nodes = of.drafts.last().map(|draft| draft.1.len() as i32);
        let parents: Option<Vec<i32>> = tree.zip(nodes).map(|(back, nodes)| {
            (0..tokens as i32).map(|at| (nodes + at - 1 - back[at as usize % 8] as i32).max(-1)).collect()
        });
        let offsets = [0, tokens];
        let begun = self.cache.begin_step(StepTokens {
            sequences: &[id],
            offsets: Some(&offsets),
            parents: parents.as_deref(),
        });
        if begun.as_ref().is_err_and(|error| error.code() == Code::OutOfBlocks) {
            return Ok(());
        }
        let mut step = begun?;
        let own = own_layers(&self.cache);
        for &layer in own.iter().take(layers) {
            write(&mut self.cache, &mut step, layer, &ids)?;
            self.attend_from(id, layer, &step, &ids, parents.as_deref())?;
        }
        let whole = layers >= own.len() || tokens == 0;
        if !whole {
            prop_assert_eq!(code(self.cache.commit_step(&mut step, None)), Err(Code::StepIncomplete));
        }
        match end {
            End::Commit if whole => {
                self.cache.commit_step(&mut step, None)?;
                self.sequences.get_mut(&id).expect("a sequence of the model").append(&ids, parents.as_deref());
            }
            End::Undo => self.cache.undo_step(&mut step)?,
            End::Outlive => {
                self.drop_sequence(id)?;
                prop_assert_eq!(code(self.cache.check_step(&step)), Err(Code::StaleStep));
                self.ledger.steps.push(step);
            }
            // The next call on the cache must find no trace of it.
            _ => drop(step),
        }
        Ok(())
    }
}
