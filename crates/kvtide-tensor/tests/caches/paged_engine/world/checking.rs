//! What must hold after each call, and at the end.

use kvtide_core::Code;
use kvtide_tensor::Transactional;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::{Done, World};
use crate::outcome::code;
use crate::paged_engine::memory::Value;

impl World {
    /// What every sequence shows is what the model has, and the bookkeeping holds.
    pub fn check(&mut self) -> Done {
        self.cache.check_invariants().map_err(TestCaseError::fail)?;
        prop_assert_eq!(self.cache.sequence_ids(), self.sequences.keys().copied().collect::<Vec<_>>());
        for (id, of) in self.sequences.clone() {
            prop_assert_eq!(self.cache.sequence_length(id) as usize, of.values.len());
            prop_assert_eq!(self.cache.committed_length(id) as usize, of.committed());
            for layer in 0..self.shape.layers {
                self.check_layer(id, layer)?;
            }
            if let Some((transaction, (base, nodes))) =
                self.open.get(&id).and_then(|ids| ids.last()).zip(of.drafts.last())
            {
                let is_stepping = self.is_stepping(id);
                let sequence = self.cache.sequence(id)?;
                prop_assert_eq!(sequence.drafted(*transaction)? as usize, nodes.len());
                let positions = (0..nodes.len()).map(|node| of.position(base + node) as u64).collect::<Vec<_>>();
                // A step brings more nodes, of which nobody knows yet whether they stay.
                let found = sequence.draft_positions(*transaction);
                match is_stepping {
                    true => prop_assert_eq!(code(found), Err(Code::TransactionOpen)),
                    false => prop_assert_eq!(found?, positions),
                }
            }
        }
        Ok(())
    }

    /// The values of a layer, with those of an open step, where they were written; 0 elsewhere.
    pub fn layer_values(&self, id: u64, layer: u32) -> Vec<Value> {
        let of = &self.sequences[&id];
        let mut values: Vec<Value> = of.values.iter().map(|values| values[layer as usize].unwrap_or(0)).collect();
        if let Some(step) = self.step.as_ref().filter(|_| self.is_stepping(id)) {
            let written = step.written[layer as usize];
            let all = self.step_values(step);
            let of_shares = step.shares.iter().flat_map(|(of, tokens)| tokens.iter().map(move |_| *of));
            let own = of_shares.zip(&all).filter(|(of, _)| *of == id);
            values.extend(own.map(|(_, token)| if written { token[layer as usize] } else { 0 }));
        }
        values
    }

    /// The positions of a sequence that its window keeps, once some may have left it.
    pub(super) fn gap(&self, id: u64, kept: usize, all: usize) -> Result<std::ops::Range<usize>, TestCaseError> {
        if kept == all {
            return Ok(0..0);
        }
        let Some((tokens, sinks)) = self.shape.window else {
            return Err(TestCaseError::fail(format!("{kept} of {all} tokens of {id} without a window")));
        };
        let size = self.shape.block_size as usize;
        let start = (sinks as usize).next_multiple_of(size);
        let gap = start..start + all - kept;
        prop_assert!(gap.end + tokens as usize <= self.sequences[&id].values.len() + 1, "{:?} is seen by others", gap);
        Ok(gap)
    }

    fn check_layer(&mut self, id: u64, layer: u32) -> Done {
        let values = self.layer_values(id, layer);
        let gathered = self.cache.gather(id, layer)?;
        let kept = gathered.k.shape()[1];
        prop_assert!(kept <= values.len());
        let gap = self.gap(id, kept, values.len())?;
        let shown: Vec<Value> = (0..values.len()).filter(|at| !gap.contains(at)).map(|at| values[at]).collect();
        let bytes = [gathered.k.to_bytes()?, gathered.v.to_bytes()?];
        for (part, bytes) in bytes.iter().enumerate() {
            let same = self.content.check(part, &shown, bytes, self.opened);
            prop_assert!(same.is_ok(), "layer {} of {}: {}", layer, id, same.unwrap_err());
        }
        // Some by themselves: the ends, the edges of a gap, and one that moves along.
        let some = [0, gap.start, gap.end, values.len() / 2, values.len().wrapping_sub(1), values.len()];
        for at in some {
            let read = self.cache.read_kv(id, layer, at as u32);
            let present = at < values.len() && !gap.contains(&at) && values[at] != 0;
            if !present {
                prop_assert_eq!(code(read), Err(Code::PositionOutOfRange), "{} of layer {} of {}", at, layer, id);
                continue;
            }
            let read = read?;
            let place = if at < gap.start || gap.is_empty() { at } else { at - gap.len() };
            for (part, one) in [read.key, read.value].into_iter().enumerate() {
                let row = one.len() / self.content.heads;
                let of_head = |head: usize| &bytes[part][(head * shown.len() + place) * row..][..row];
                prop_assert_eq!(one, (0..self.content.heads).flat_map(of_head).copied().collect::<Vec<_>>());
            }
        }
        Ok(())
    }

    /// After everything is dropped, everything is free.
    pub fn end(mut self) -> Done {
        self.end_step(false)?;
        self.check()?;
        for id in std::mem::take(&mut self.sequences).into_keys() {
            self.cache.drop_sequence(id)?;
        }
        self.snapshots.clear();
        let stats = self.cache.pools()?[0];
        prop_assert_eq!((stats.active, stats.free + stats.cached), (0, self.shape.capacity));
        self.check()?;
        self.cache.forget_prefixes()?;
        self.check()?;
        prop_assert_eq!(self.cache.pools()?[0].free, self.shape.capacity);
        prop_assert_eq!(self.cache.staged_count(), 0);
        Ok(())
    }
}
