//! Prefixes that are found.

use proptest::prelude::*;

use super::{Done, World, identity};
use crate::model::{Sequence, of_ids};

impl World {
    pub(super) fn find(&mut self, tokens: &[u32], salt: u8, partial: bool, keep: bool) -> Done {
        let held = self.planner.find(tokens, &identity(salt), partial).unwrap();
        let length = held.length() as usize;
        prop_assert!(length < tokens.len().max(1));
        if let Some(committed) = &self.committed {
            let size = self.shape.block_size as usize;
            let common = |(of, ids): &(u8, Vec<u32>)| {
                let same = ids.iter().zip(tokens).take_while(|(one, other)| one == other).count();
                if *of == salt { same.min(ids.len() / size * size).min(tokens.len().saturating_sub(1)) } else { 0 }
            };
            let best = committed.iter().map(common).max().unwrap_or(0);
            // A window needs less than all of it.
            if self.shape.window.is_none() && self.planner.pool_stats().evictions == 0 {
                prop_assert_eq!(length, if partial { best } else { best / size * size });
            }
        }
        if !keep {
            self.planner.release(held);
            return Ok(());
        }
        let id = self.planner.create_from(held).unwrap();
        let mut of = Sequence::new(salt);
        for at in 0..length {
            let value = |layer| Some(of_ids(salt, &tokens[..=at], layer));
            of.values.push((0..self.shape.layers).map(value).collect());
        }
        of.ids = tokens[..length].to_vec();
        self.sequences.insert(id, of);
        Ok(())
    }

    pub(super) fn note_committed(&mut self, of: &Sequence) {
        if let Some(committed) = &mut self.committed {
            let ids = of.ids[..of.ids.len().min(of.committed())].to_vec();
            committed.push((of.salt, ids));
        }
    }

    pub(super) fn note_all_committed(&mut self) {
        for of in self.sequences.values().cloned().collect::<Vec<_>>() {
            self.note_committed(&of);
        }
    }
}
