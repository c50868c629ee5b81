//! Direct writes.

use kvtide_core::Code;
use proptest::prelude::*;

use super::super::model::Value;
use super::{Cache, Done, Share, World};

impl<C: Cache> World<C> {
    pub(super) fn append(&mut self, shares: &[Share], known: bool) -> Done {
        let first = self.reserve_values();
        let values = self.values_of(shares, known, first);
        let tokens: Vec<u32> = shares.iter().flat_map(|share| share.1.clone()).collect();
        match self.cache.append(shares, &values, known.then_some(&tokens)) {
            Ok(()) => {
                self.append_to_model(shares, known, first);
                self.note_all_committed();
            }
            Err(Code::OutOfBlocks) => {}
            Err(code) => {
                prop_assert_eq!(code, Code::TransactionOpen);
                let is_open = |id: &u64| self.is_stepping(*id) || !self.sequences[id].drafts.is_empty();
                prop_assert!(shares.iter().any(|(id, _)| is_open(id)));
            }
        }
        Ok(())
    }

    /// The values of tokens to come, in order: of a sequence that is not there those of an empty one.
    pub(super) fn values_of(&self, shares: &[Share], known: bool, first: Value) -> Vec<Vec<Value>> {
        let mut values = Vec::new();
        for (id, tokens) in shares {
            let done = values.len() as u32;
            let mut of = self.sequences.get(id).cloned().unwrap_or_default();
            values.extend(of.append(tokens, known, self.shape.layers, |layer, at| first + layer * 200 + done + at));
        }
        values
    }

    pub(super) fn append_to_model(&mut self, shares: &[Share], known: bool, first: Value) {
        let (mut done, layers) = (0, self.shape.layers);
        for (id, tokens) in shares {
            self.sequence(*id).append(tokens, known, layers, |layer, at| first + layer * 200 + done + at);
            done += tokens.len() as u32;
        }
    }

    pub(super) fn reserve_values(&mut self) -> Value {
        self.next += 1000;
        self.next - 1000
    }

    pub(super) fn write(&mut self, id: u64, layer: u32, position: u32, tokens: u32) -> Done {
        let first = self.reserve_values();
        let values: Vec<Value> = (0..tokens).map(|token| first + token).collect();
        let done = self.cache.write(id, layer, position, &values);
        let layers = self.shape.layers;
        match done {
            _ if layer >= layers => prop_assert_eq!(done, Err(Code::InvalidArgument)),
            Err(Code::OutOfBlocks) => {}
            Err(Code::PositionOutOfRange) => {
                prop_assert!(self.shape.window.is_some(), "only what left a window cannot be written");
            }
            _ if self.refuses_change(id, &done)? => {}
            _ => {
                self.sequence(id).write(layer, position as usize, &values, layers);
                self.committed = None;
            }
        }
        Ok(())
    }

    pub(super) fn truncate(&mut self, id: u64, length: u32) -> Done {
        let truncated = self.cache.truncate(id, length);
        let before = self.sequences[&id].values.len();
        if truncated == Err(Code::CannotRollBack) {
            prop_assert!(length as usize > before || self.shape.window.is_some());
        } else if !self.refuses_change(id, &truncated)? {
            prop_assert!(length as usize <= before);
            self.sequence(id).truncate(length as usize);
            self.committed = None;
        }
        Ok(())
    }
}
