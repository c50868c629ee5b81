//! Invariants after each call, and at the end.

use std::collections::HashSet;

use kvtide_core::paged::{BlockKey, Event, HeldContent};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::{Done, Group, Sequence, World, key_of, value};

impl World {
    pub fn check(&mut self) -> Done {
        let held = std::mem::take(&mut self.snapshots);
        for (at, of) in self.groups.iter_mut().enumerate() {
            let of_group: Vec<&HeldContent> = held.iter().map(|snapshot| &snapshot.held[at]).collect();
            of.planner.check_invariants(&of_group).map_err(TestCaseError::fail)?;
            of.follow();
            let evictions = of.planner.pool_stats().evictions;
            prop_assert!(of.removed <= evictions + of.overwritten, "a block is found no more, and nothing took it");
            of.is_exact &= evictions + of.overwritten == 0;
            for (&id, sequence) in &self.sequences {
                let tokens = &sequence.tokens;
                prop_assert_eq!(of.planner.sequence_length(id) as usize, tokens.len());
                let gap = of.planner.gap(id).unwrap();
                if let Some((window, sinks)) = of.window {
                    prop_assert!(gap.is_empty() || (gap.start >= sinks && gap.end + window <= tokens.len() as u32 + 1));
                }
                for position in (0..tokens.len() as u32).filter(|position| !gap.contains(position)) {
                    let slot = of.planner.locate(id, 0, position).unwrap();
                    let read = of.memory.read(None, slot.block, 0, slot.index);
                    prop_assert_eq!(
                        read,
                        value(sequence.salt, &tokens[..=position as usize]),
                        "{} of {}",
                        position,
                        id
                    );
                }
                of.note_computed(sequence, at, self.block_size);
                of.finds(sequence, at, self.block_size, &gap)?;
            }
            for snapshot in &held {
                of.finds(&snapshot.sequence, at, self.block_size, &snapshot.gaps[at])?;
            }
            let computed: HashSet<&BlockKey> = of.computed.values().collect();
            prop_assert!(of.keys.iter().all(|key| computed.contains(&key)), "a block is found that was never computed");
        }
        self.snapshots = held;
        Ok(())
    }

    /// After everything is dropped, everything is free.
    pub fn end(mut self) -> Done {
        for id in std::mem::take(&mut self.sequences).into_keys() {
            self.groups.iter_mut().for_each(|of| of.planner.drop_sequence(id).unwrap());
        }
        for snapshot in std::mem::take(&mut self.snapshots) {
            self.groups.iter_mut().zip(snapshot.held).for_each(|(of, held)| of.planner.release(held));
        }
        self.check()?;
        for of in &mut self.groups {
            of.planner.forget_prefixes();
            prop_assert_eq!(of.planner.pool_stats().free, of.planner.total_count());
        }
        Ok(())
    }
}

impl Group {
    /// Notes the whole blocks of a sequence that prompts may find from now on.
    fn note_computed(&mut self, of: &Sequence, at: usize, size: usize) {
        for blocks in 1..=of.named(at) / size {
            let tokens = &of.tokens[..blocks * size];
            let key = key_of(of.salt, tokens, size);
            self.computed.insert((of.salt, tokens.to_vec()), key);
        }
    }

    /// Held blocks are found, independently of evictions.
    fn finds(&self, of: &Sequence, at: usize, size: usize, gap: &std::ops::Range<u32>) -> Done {
        for place in (0..of.named(at) / size).filter(|place| !gap.contains(&((place * size) as u32))) {
            let key = &self.computed[&(of.salt, of.tokens[..(place + 1) * size].to_vec())];
            prop_assert!(self.keys.contains(key), "block {} is held and not found", place);
        }
        Ok(())
    }

    pub(super) fn follow(&mut self) {
        let unseen = self.planner.events(self.seen);
        for event in unseen.events.into_iter().flatten() {
            match event {
                Event::Stored { key, .. } => drop(self.keys.insert(*key)),
                Event::Removed { key } => {
                    self.keys.remove(key);
                    self.removed += 1;
                }
                Event::Cleared => self.keys.clear(),
            }
        }
        self.seen = unseen.next;
    }
}
