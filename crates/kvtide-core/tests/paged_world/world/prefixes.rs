//! Cached prefixes.

use proptest::prelude::*;

use super::super::model::{Sequence, of_ids};
use super::{Cache, Done, World};

impl<C: Cache> World<C> {
    pub(super) fn find(&mut self, tokens: &[u32], salt: u8, partial: bool, keep: bool) -> Done {
        let held = self.cache.find(tokens, salt, partial);
        let length = C::held_length(&held) as usize;
        prop_assert!(length < tokens.len().max(1));
        if let Some(committed) = &self.committed {
            let size = self.shape.block_size as usize;
            let common = |(of, ids): &(u8, Vec<u32>)| {
                let same = ids.iter().zip(tokens).take_while(|(one, other)| one == other).count();
                if *of == salt { same.min(ids.len() / size * size).min(tokens.len().saturating_sub(1)) } else { 0 }
            };
            let best = committed.iter().map(common).max().unwrap_or(0);
            // A window needs less than all of it.
            if self.shape.window.is_none() && self.cache.pool().evictions == 0 {
                prop_assert_eq!(length, if partial { best } else { best / size * size });
            }
        }
        if !keep {
            self.cache.release(held);
            return Ok(());
        }
        let id = self.cache.create_from(held);
        let mut of = Sequence::new(salt);
        for at in 0..length {
            let value = |layer| Some(of_ids(salt, &tokens[..=at], layer));
            of.values.push((0..self.shape.layers).map(value).collect());
        }
        of.ids = tokens[..length].to_vec();
        of.truth = of.ids.clone();
        self.sequences.insert(id, of);
        Ok(())
    }

    /// Ids are said that could have been said at once: what is found by them has the values of just these tokens, as for any other.
    pub(super) fn identify(&mut self, id: u64, tokens: u32) -> Done {
        let of = &self.sequences[&id];
        let said = of.truth[..of.truth.len().min(tokens as usize)].to_vec();
        let (before, length) = (of.ids.len(), of.values.len());
        let answer = self.cache.identify(id, &said);
        if self.refuses_change(id, &answer)? {
            return Ok(());
        }
        let known = answer.expect("how many are known") as usize;
        prop_assert!(known <= before.max(said.len()) && known <= length);
        let of = self.sequence(id);
        if known > of.ids.len() {
            of.ids = of.truth[..known].to_vec();
        }
        // Blocks that others hold get no ids, and which those are the model does not say.
        self.committed = None;
        Ok(())
    }

    pub(super) fn note_all_committed(&mut self) {
        let Some(committed) = &mut self.committed else { return };
        committed.extend(self.sequences.values().map(|of| {
            let ids = &of.ids[..of.ids.len().min(of.committed())];
            (of.salt, ids.to_vec())
        }));
    }
}
