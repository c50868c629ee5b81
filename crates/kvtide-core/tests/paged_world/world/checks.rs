//! Invariants after each call, and at the end.

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::super::model::Value;
use super::{Cache, Done, Seen, SeenStep, Step, World};

impl<C: Cache> World<C> {
    /// Checks that every sequence shows the model's values, and that the bookkeeping is consistent.
    pub fn check(&mut self) -> Done {
        let held: Vec<&C::Hold> = self.snapshots.iter().map(|(held, _)| held).collect();
        self.cache.check_invariants(&held).map_err(TestCaseError::fail)?;
        let ids: Vec<u64> = self.sequences.keys().copied().collect();
        prop_assert_eq!(&self.cache.ids(), &ids);
        for id in ids {
            let (resting, committed) = (self.sequences[&id].values.len(), self.sequences[&id].committed());
            prop_assert_eq!(self.cache.lengths(id), [resting as u32, committed as u32]);
            for layer in 0..self.shape.layers {
                let values = self.layer_values(id, layer);
                self.cache.check_layer(id, layer, &Seen { shape: &self.shape, values: &values, resting })?;
            }
            self.check_draft(id)?;
        }
        self.check_step()
    }

    fn check_draft(&mut self, id: u64) -> Done {
        let of = &self.sequences[&id];
        let Some((transaction, (base, nodes))) = self.innermost(id).zip(of.drafts.last()) else { return Ok(()) };
        let positions: Vec<usize> = (0..nodes.len()).map(|node| of.position(base + node)).collect();
        let is_stepping = self.is_stepping(id);
        self.cache.check_draft((id, transaction), &positions, is_stepping)
    }

    fn check_step(&mut self) -> Done {
        let Some(step) = &self.step else { return Ok(()) };
        let place = |(id, tokens): &(u64, Vec<u32>)| {
            // What is dropped stands nowhere.
            let mut of = self.sequences.get(id).cloned().unwrap_or_default();
            let before = of.values.len();
            of.append(tokens, step.known, self.shape.layers, |_, _| 1);
            of.add_chain(tokens.len());
            (before, (before..of.values.len()).map(|at| of.position(at)).collect())
        };
        let places: Vec<(usize, Vec<usize>)> = step.shares.iter().map(place).collect();
        let (shares, written, is_stale) = (&step.shares, &step.written, self.is_stale(step));
        let seen = SeenStep { shape: &self.shape, shares, written, is_stale, places: &places };
        self.cache.check_step(&step.open, &seen)
    }

    pub fn is_stale(&self, step: &Step<C::Step>) -> bool {
        !step.left.is_empty() || step.shares.iter().any(|(id, _)| !self.sequences.contains_key(id))
    }

    /// The values of a layer, with those of an open step, where they were written.
    pub fn layer_values(&self, id: u64, layer: u32) -> Vec<Option<Value>> {
        let of = &self.sequences[&id];
        let mut values: Vec<Option<Value>> = of.values.iter().map(|values| values[layer as usize]).collect();
        if let Some(step) = self.step.as_ref().filter(|_| self.is_stepping(id)) {
            let written = step.written[layer as usize];
            let all = self.step_values(step);
            let of_shares = step.shares.iter().flat_map(|(of, tokens)| tokens.iter().map(move |_| *of));
            let own = of_shares.zip(&all).filter(|(of, _)| *of == id);
            values.extend(own.map(|(_, token)| written.then_some(token[layer as usize])));
        }
        values
    }

    /// After everything is dropped, everything is free.
    pub fn end(mut self) -> Done {
        self.end_step(false)?;
        self.check()?;
        for id in std::mem::take(&mut self.sequences).into_keys() {
            prop_assert_eq!(self.cache.drop_sequence(id), Ok(()));
        }
        for (held, _) in std::mem::take(&mut self.snapshots) {
            self.cache.release(held);
        }
        self.check()?;
        let pool = self.cache.pool();
        prop_assert_eq!((pool.active, pool.free + pool.cached), (0, self.shape.capacity));
        self.cache.forget();
        self.check()?;
        prop_assert_eq!((self.cache.pool().free, self.cache.staged_count()), (self.shape.capacity, 0));
        Ok(())
    }
}
