//! Prefixes that are found.

use kvtide_tensor::PromptOptions;
use proptest::prelude::*;

use super::{Done, World};
use crate::paged_engine::model::{Sequence, of_ids};

impl World {
    pub(super) fn find(&mut self, tokens: &[u32], salt: u8, partial: bool, keep: bool) -> Done {
        if self.shape.window.is_some() {
            return Ok(());
        }
        let prefix = self.cache.find_prefix(tokens, PromptOptions { salt: &[salt], extra: &[] }, partial)?;
        let length = prefix.length() as usize;
        prop_assert!(length < tokens.len().max(1));
        if let Some(committed) = &self.committed {
            let size = self.shape.block_size as usize;
            let common = |(of, ids): &(u8, Vec<u32>)| {
                let same = ids.iter().zip(tokens).take_while(|(one, other)| one == other).count();
                if *of == salt { same.min(ids.len() / size * size).min(tokens.len().saturating_sub(1)) } else { 0 }
            };
            let best = committed.iter().map(common).max().unwrap_or(0);
            if self.cache.pools()?[0].evictions == 0 {
                prop_assert_eq!(length, if partial { best } else { best / size * size });
            }
        }
        if !keep {
            return Ok(());
        }
        self.opened += u32::from(partial);
        let id = self.cache.create_sequence_from(prefix)?;
        let mut of = Sequence::new(salt);
        for at in 0..length {
            let value = |layer| Some(of_ids(salt, &tokens[..=at], layer));
            of.values.push((0..self.shape.layers).map(value).collect());
        }
        of.ids = tokens[..length].to_vec();
        self.sequences.insert(id, of);
        Ok(())
    }

    fn note_committed(&mut self, of: &Sequence) {
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
