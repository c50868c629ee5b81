//! Direct writes.

use kvtide_core::Code;
use proptest::prelude::*;

use super::{Done, World, flat, ran_out};
use crate::paged_engine::memory::Value;

impl World {
    pub(super) fn append(&mut self, shares: &[(u64, Vec<u32>)], known: bool) -> Done {
        let (sequences, offsets, tokens) = flat(shares);
        let first = self.reserve_values();
        let mut values = Vec::new();
        for (id, tokens) in shares {
            let done = values.len() as u32;
            let other = |layer, at| first + layer * 200 + done + at;
            values.extend(self.sequences[id].clone().append(tokens, known, self.shape.layers, other));
        }
        let fed = self.fed_all(&values);
        let ids = known.then_some(&tokens[..]);
        let done = self.cache.append_known(&sequences, fed.host(0), fed.host(1), Some(&offsets), ids);
        if ran_out(&done)? {
            return Ok(());
        }
        if let Err(error) = done {
            prop_assert_eq!(error.code(), Code::TransactionOpen);
            prop_assert!(sequences.iter().any(|id| self.is_stepping(*id) || !self.sequences[id].drafts.is_empty()));
            return Ok(());
        }
        self.append_to_model(shares, known, first);
        self.note_all_committed();
        Ok(())
    }

    /// Appends to the model.
    pub(super) fn append_to_model(&mut self, shares: &[(u64, Vec<u32>)], known: bool, first: Value) {
        let mut done = 0;
        for (id, tokens) in shares {
            let of = self.sequences.get_mut(id).expect("a sequence of the model");
            of.append(tokens, known, self.shape.layers, |layer, at| first + layer * 200 + done + at);
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
        let fed = self.fed(std::slice::from_ref(&values), false);
        // One token goes in by itself as well.
        let done = match tokens {
            1 => self.cache.write_kv(id, layer, position, fed.host(0), fed.host(1)),
            _ => self.cache.write_tokens(id, layer, position, fed.host(0), fed.host(1)),
        };
        if layer >= self.shape.layers {
            prop_assert_eq!(done.map_err(|error| error.code()), Err(Code::InvalidArgument));
            return Ok(());
        }
        if ran_out(&done)? {
            return Ok(());
        }
        if let Err(error) = &done
            && error.code() == Code::PositionOutOfRange
        {
            prop_assert!(self.shape.window.is_some(), "only what left a window cannot be written");
            return Ok(());
        }
        if self.refuses_change(id, &done)? {
            return Ok(());
        }
        self.opened += 1;
        let of = self.sequences.get_mut(&id).expect("a sequence of the model");
        of.write(layer, position as usize, &values, self.shape.layers);
        self.committed = None;
        Ok(())
    }

    pub(super) fn truncate(&mut self, id: u64, length: u32) -> Done {
        let truncated = self.cache.truncate(id, length);
        let before = self.sequences[&id].values.len();
        let refused = truncated.as_ref().err().map(kvtide_tensor::Error::code) == Some(Code::CannotRollBack);
        if refused {
            prop_assert!(length as usize > before || self.shape.window.is_some());
        } else if !self.refuses_change(id, &truncated)? {
            prop_assert!(length as usize <= before);
            self.opened += 1;
            self.sequences.get_mut(&id).expect("a sequence of the model").truncate(length as usize);
            self.committed = None;
        }
        Ok(())
    }
}
