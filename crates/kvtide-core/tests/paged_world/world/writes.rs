//! Direct writes.

use kvtide_core::paged::{Append, WriteTarget, Writer};
use kvtide_core::{Code, Error};
use proptest::prelude::*;

use super::{Done, World, flat};
use crate::memory::Value;

impl World {
    pub(super) fn append(&mut self, shares: &[(u64, Vec<u32>)], known: bool) -> Done {
        let (sequences, offsets, tokens) = flat(shares);
        let append = Append { sequences: &sequences, offsets: Some(&offsets), parents: None, writer: Writer::Direct };
        let write = self.planner.check_append(&append);
        if let Err(error) = &write {
            prop_assert_eq!(error.code(), Code::TransactionOpen);
            prop_assert!(sequences.iter().any(|id| self.is_stepping(*id) || !self.sequences[id].drafts.is_empty()));
            return Ok(());
        }
        let targets = self.targets(shares);
        self.check_one_go(write, &targets, self.planner.plan_append(&append))?;
        if !self.copy(&targets)? {
            return Ok(());
        }
        let plan = self.planner.plan_append(&append).unwrap();
        let values = self.append_to_model(shares, known, None);
        self.memory.write(&self.planner, &plan, |layer, token| values[token as usize][layer as usize]);
        self.planner.commit(&plan, known.then_some(&tokens)).unwrap();
        self.note_all_committed();
        Ok(())
    }

    /// Appends to the model; the values of all tokens, in order.
    pub(super) fn append_to_model(
        &mut self,
        shares: &[(u64, Vec<u32>)],
        known: bool,
        first: Option<Value>,
    ) -> Vec<Vec<Value>> {
        let first = first.unwrap_or_else(|| self.reserve_values());
        let mut values = Vec::new();
        for (id, tokens) in shares {
            let done = values.len() as u32;
            let of = self.sequences.get_mut(id).unwrap();
            let other = |layer, at| first + layer * 200 + done + at;
            values.extend(of.append(tokens, known, self.shape.layers, other));
        }
        values
    }

    pub(super) fn reserve_values(&mut self) -> Value {
        self.next += 1000;
        self.next - 1000
    }

    pub(super) fn write(&mut self, id: u64, layer: u32, position: u32, tokens: u32) -> Done {
        if layer >= self.shape.layers {
            return Ok(());
        }
        let write = match self.planner.check_tokens(id, layer, position, tokens) {
            Ok(write) => write,
            Err(error) if error.code() == Code::PositionOutOfRange => {
                prop_assert!(self.shape.window.is_some(), "only what left a window cannot be written");
                return Ok(());
            }
            Err(error) => return self.refuses_change::<()>(id, &Err(error)).map(drop),
        };
        let target = WriteTarget { sequence: id, position, tokens };
        self.check_one_go(Ok(write), &[target], self.planner.plan_tokens(id, layer, position, tokens))?;
        if !self.copy(&[target])? {
            return Ok(());
        }
        let plan = self.planner.plan_tokens(id, layer, position, tokens).unwrap();
        let first = self.reserve_values();
        self.memory.write(&self.planner, &plan, |_, token| first + token);
        self.planner.commit(&plan, None).unwrap();
        let values: Vec<Value> = (0..tokens).map(|token| first + token).collect();
        self.sequences.get_mut(&id).unwrap().write(layer, position as usize, &values, self.shape.layers);
        self.committed = None;
        Ok(())
    }

    pub(super) fn truncate(&mut self, id: u64, length: u32) -> Done {
        let truncated = self.planner.truncate(id, length);
        let before = self.sequences[&id].values.len();
        let refused = truncated.as_ref().err().map(Error::code) == Some(Code::CannotRollBack);
        if refused {
            prop_assert!(length as usize > before || self.shape.window.is_some());
        } else if !self.refuses_change(id, &truncated)? {
            prop_assert!(length as usize <= before);
            self.sequences.get_mut(&id).unwrap().truncate(length as usize);
            self.committed = None;
        }
        Ok(())
    }
}
